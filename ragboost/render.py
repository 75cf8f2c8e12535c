"""Write a context as prompt text or chat messages.

The document part's bytes depend only on the sequence of documents, and nothing stands before it:
contexts with equal leading documents begin with equal bytes. Does not know models' chat templates.
"""

from ragboost.types import Context, Document


def render_document(document: Document, *, label: str) -> str:
    """One block: the label, the title where there is one, and the text on lines of its own."""
    head = f"{label} {document.title}" if document.title else label
    return f"{head}\n{document.text}\n\n"


def render_documents(context: Context) -> str:
    """The document part: the blocks, one after another."""
    return "".join(
        render_document(document, label=label)
        for document, label in zip(context.documents, context.labels, strict=True)
    )


def render_question(context: Context) -> str:
    """The part behind the documents: the hints, a line each, and the question."""
    hints = "\n".join(hint.text for hint in context.hints)
    if not hints:
        return context.query
    if context.hint_position == "after_question":
        return f"{context.query}\n\n{hints}"
    return f"{hints}\n\n{context.query}"


def render_prompt(context: Context) -> str:
    """The whole prompt: documents, hints and question."""
    return render_documents(context) + render_question(context)


def render_messages(context: Context, *, system: str | None = None) -> list[dict[str, str]]:
    """Chat messages: the system prompt where given, and one user message."""
    user = {"role": "user", "content": render_prompt(context)}
    return [user] if system is None else [{"role": "system", "content": system}, user]

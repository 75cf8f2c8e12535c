"""Add the positions of documents to a body, for an engine that reuses chunks.

Knows bodies as they are sent, and contexts. Does not know which backends reuse chunks.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ragboost.booster.context import Context, render_document
from ragboost.requests.formats.ragboost_object import FIELD, GRAPH
from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.body import question_field
from ragboost.requests.wires.registry import CONTENTS


def add_chunks(
    fields: Mapping[str, Any],
    context: Context | None,
    *,
    message: int | None,
    reuse: Any,
    tenant: str = "",
    not_reused: Collection[str] = (),
) -> Mapping[str, Any]:
    """Return the fields with the positions of their documents in the `ragboost` object.

    A body with a graph is returned as it is: its prompt is computed in another way.

    Args:
        fields: as they will be sent.
        context: None: the documents are unknown.
        message: index of the message that carries them; None: the prompt.
        reuse: the client's `ragboost.reuse`.
        tenant: whose stored chunks the request may share; empty: everybody's.
        not_reused: keys of documents that are computed like other text.
    """
    kept = fields.get(FIELD)
    if isinstance(kept, dict) and GRAPH in kept:
        return fields
    found = find_chunks(fields, context, message=message) if context is not None else []
    if context is not None and not_reused:
        pairs = zip(found, context.documents, strict=True)
        found = [None if document.key in not_reused else chunk for chunk, document in pairs]
    ours = {"reuse": reuse} if reuse is not None else {}
    if chunks := [chunk for chunk in found if chunk is not None]:
        ours["chunks"] = chunks
        entry = context.index_entry if context is not None else None
        num_exact = (entry.num_exact if entry is not None else None) or 0
        if exact := [chunk for chunk in found[:num_exact] if chunk is not None]:
            ours["exact_chunks"] = len(exact)
    if tenant and ours:
        ours["tenant"] = tenant
    return {**fields, FIELD: ours} if ours else fields


def find_chunks(
    fields: Mapping[str, Any], context: Context, *, message: int | None
) -> list[list[int] | None]:
    """Return the position of each document in the body, rendered or as plain text.

    Returns:
        `[message, start, stop]`, or `[start, stop]` in a prompt; offsets in characters. None for a
        document that does not occur.
    """
    text = _text(fields, message)
    head = [] if message is None else [message]
    chunks: list[list[int] | None] = []
    cursor = 0
    for document, label in zip(context.documents, context.labels, strict=True):
        for written in (render_document(document, label=label), document.text):
            at = text.find(written, cursor)
            if at >= 0:
                cursor = at + len(written)
                chunks.append([*head, at, cursor])
                break
        else:
            chunks.append(None)
    return chunks


def _text(fields: Mapping[str, Any], message: int | None) -> str:
    if message is None:
        prompt = fields.get(question_field(fields))
        return prompt if isinstance(prompt, str) else ""
    field = question_field(fields)
    content = decode_message(fields[field][message]).get(CONTENTS[field])
    if isinstance(content, str):
        return content
    parts = [part.get("text") if isinstance(part, dict) else part for part in content or ()]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else ""

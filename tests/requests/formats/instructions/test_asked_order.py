"""What a text asks of the order of documents, by its wording."""

import pytest

from ragboost.requests.formats.instructions.asked_order import PLACES, WORK, asked_order

_WORK = [
    *("Translate each document.", "Rank the passages.", "Classify each.", "Proofread the text."),
    "Translate the documents into French.",
    "Return a JSON array with one score per document, in the order given.",
    "For every document write 'relevant' or 'irrelevant', one per line.",
    "Extract the date of each document as a list.",
    "Rerank these documents: return the indexes, best first, counting from 1.",
    "Which document (1, 2, 3, ...) contains the answer? Reply with the number only.",
    "Answer with the position of the document that holds the answer.",
    "Choose the best document. Output its number.",
    "If two documents disagree, the later one wins.",
    "If documents conflict, prefer the first.",
    "Ordered by priority: earlier entries override later ones.",
    "Das letzte gilt.",
    "Le dernier fait foi.",
    "文档按时间顺序排列，以最后一个为准。",
    "翻译每个文档。",
    "The documents are sorted from oldest to newest.",
    "Documents are listed newest first.",
    "The most recent document comes last.",
    "These are consecutive parts of one report.",
    "The text is split into documents in reading order.",
    "Each document continues the one before it, so keep them in the same order.",
    "Fix the typos.",
    "Summarize the story so far.",
    "Give your verdicts as a list of yes/no, in document order.",
    "Render all passages in French.",
    "Each document amends the one before it.",
    "What stands at the bottom is the current state.",
    "The first is the original and the second the translation.",
    "Documents are listed from strongest to weakest evidence.",
    "Übersetze alle Texte.",
    "Les documents vont du plus ancien au plus récent.",
    "后面的文档优先于前面的文档。",
]
_PLACES = [
    *("What does the last document say?", "Ignore the final document.", "Open the 2nd pdf."),
    *("第二个文档说什么", "Was sagt das zweite Dokument?", "la última fuente", "the second one"),
]
_NEITHER = [
    "Use the following pieces of retrieved context to answer the question.",
    "Cite the source of each document you use.",
    "List each source that you used at the end.",
    "Cite the documents with [1], [2] and so on, and reference each source by its number.",
    "Each document has a title and a URL.",
    "Every claim needs a citation.",
    "Don't combine sources, list each source separately, for example [info1.txt].",
    "Keep the order of imports, and follow the steps in their order.",
    "Later messages from the user override earlier ones.",
    "If two documents conflict, trust the one with the later effective date.",
    "List the events in chronological order.",
    "按时间顺序列出事件。",
    "Label each claim as supported or unsupported.",
    "Nenne die Quellen in der Reihenfolge ihrer Relevanz.",
    "In order to answer, read the documents.",
    "List the names in alphabetical order.",
    "The documents are ordered by relevance, most relevant first.",
    "Prefer the most recent information.",
    "If sources conflict, say so.",
    "Answer with the number of employees.",
    "Translate the question into German.",
    "Who was first to reach the pole, and when did the later king rule?",
    "Which article of The Verge discusses the merger?",
    "What is the price per item?",
    "Write the final document.",
    "What is the last file format, and the first source of truth?",
    "第一个登上月球的人是谁",
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [*((t, WORK) for t in _WORK), *((t, PLACES) for t in _PLACES), *((t, "") for t in _NEITHER)],
)
def test_the_wording_tells_if_documents_may_move(text: str, reason: str) -> None:
    assert asked_order(text) == reason
    assert asked_order(f"# Task\n{text}\n{'Be brief. ' * 2000}") == reason, "beside other sentences"
    assert asked_order(f"{'Be brief. ' * 2000}{text}") == reason, "at the other end"
    assert asked_order("Be brief. " * 1000 + text + " Be brief." * 1000) == reason, "in the middle"


@pytest.mark.parametrize("said", ["Translate {}\ndocument.", "Translate **{}** document."])
@pytest.mark.parametrize("each", ["each", "every"])
def test_emphasis_and_line_ends_are_no_words(said: str, each: str) -> None:
    assert asked_order(said.format(each)) == WORK
    assert asked_order(f"Translate the question.\n{each.title()} document counts.") == ""

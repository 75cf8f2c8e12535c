"""Questions with documents for language models, from retrieval runs on disk.

Documents longer than `MAX_TOKENS`, or a given length, are cut behind a word. Those without the
answer are taken in the order of the run if they have `MIN_TOKENS`, until there are enough, and all
keep that order.

The first 40 % of a set, whole conversations, are development questions, the rest test questions:
policies, ratios and layers are chosen on the former and reported on the latter.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.datasets.retrieval import read_rows
from ragboost.types import Document

MIN_TOKENS, MAX_TOKENS = 100, 260  # of a document
LONGEST_CONSTANT = 512
DEVELOPMENT = 0.4  # share of a set
Part = Literal["development", "test"]
CountTokens = Callable[[str], int]


def token_counter(tokenizer: Any) -> CountTokens:
    """Count the tokens of texts, without special ones."""
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class LanguageCase:
    """A question with its documents, most relevant first."""

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    history: tuple[tuple[str, str], ...] = ()  # role and text of the earlier messages
    conversation: str = ""  # cases of one are not independent; empty: it stands alone
    # documents of the request before it; the Booster then decides the order, with a hint
    earlier: tuple[Document, ...] = ()
    strangers: tuple[Document, ...] = ()  # documents of another case

    @property
    def group(self) -> str:
        """The conversation, or the case itself."""
        return self.conversation or self.id


def read_cases(
    folder: Path, *, num_documents: int, count_tokens: CountTokens, longest: int = MAX_TOKENS
) -> list[LanguageCase]:
    """Return the answerable questions of a data set; MT-RAG with its native documents, and earlier
    turns with the right answers."""
    rows = {row["id"]: row for row in read_rows(folder, "corpus.jsonl*")}
    is_chat = any(folder.glob("retrieved_native.jsonl*"))
    lists = _lists(folder, "native" if is_chat else "given")
    further = _lists(folder, "bm25_history" if is_chat else "bm25")
    history: dict[str, tuple[tuple[str, str], ...]] = {}
    cases = []
    for query in read_rows(folder, "queries.jsonl*"):
        conversation = query.get("conversation_id", "")
        earlier = history.get(conversation, ())
        turn = (("user", query["question"]), ("assistant", query["answers"][0]))
        if conversation:
            history[conversation] = (*earlier, *turn)
        if query.get("answerability") == "UNANSWERABLE" or not lists.get(query["id"]):
            continue
        found = list(dict.fromkeys([*lists[query["id"]], *further.get(query["id"], ())]))
        gold = set(lists[query["id"]] if is_chat else query["gold_doc_ids"])
        documents = _choose(
            [rows[name] for name in found if name in rows],
            gold,
            num_documents=num_documents,
            count_tokens=count_tokens,
            longest=longest,
        )
        if len(documents) == num_documents:
            answers, name = tuple(query["answers"]), query["id"]
            cases.append(
                LanguageCase(name, query["question"], answers, documents, earlier, conversation)
            )
    return cases


def read_constant(
    folder: Path, name: str, *, count_tokens: CountTokens, longest: int = MAX_TOKENS
) -> Document:
    """Return a document of a corpus that others are stored behind: the `longest`, cut to
    `LONGEST_CONSTANT`, or one drawn with its name as the seed, cut as the others are."""
    rows = [row for row in read_rows(folder, "corpus.jsonl*") if row["text"].strip()]
    if name == "longest":
        row, room = max(rows, key=lambda row: len(row["text"])), LONGEST_CONSTANT
    else:
        rows = [row for row in rows if count_tokens(row["text"]) >= MIN_TOKENS]
        row, room = random.Random(name).choice(rows), longest
    text = cut(row["text"], count_tokens, longest=room)
    return Document(text, id="0", title=row.get("title") or None)


def split(cases: Sequence[LanguageCase], part: Part) -> list[LanguageCase]:
    """Return the development or the test cases, without dividing a conversation."""
    groups = list(dict.fromkeys(case.group for case in cases))
    development = set(groups[: round(DEVELOPMENT * len(groups))])
    return [case for case in cases if (case.group in development) == (part == "development")]


def cut(text: str, count_tokens: CountTokens, *, longest: int = MAX_TOKENS) -> str:
    """Return the beginning of a text with at most so many tokens, ending behind a word."""
    words = text.split(" ")
    while (count := count_tokens(" ".join(words))) > longest:
        words = words[: min(len(words) - 1, len(words) * longest // count)]
    return " ".join(words)


def _lists(folder: Path, run: str) -> Mapping[str, Sequence[str]]:
    rows = read_rows(folder, f"retrieved_{run}.jsonl*")
    return {row["id"]: row["doc_ids"] for row in rows}


def _choose(
    rows: Sequence[dict[str, Any]],
    gold: set[str],
    *,
    num_documents: int,
    count_tokens: CountTokens,
    longest: int,
) -> tuple[Document, ...]:
    room = num_documents - sum(row["id"] in gold for row in rows)
    chosen: list[Document] = []
    for row in rows:
        if row["id"] not in gold:
            if room <= 0 or count_tokens(row["text"]) < MIN_TOKENS:
                continue
            room -= 1
        text = cut(row["text"], count_tokens, longest=longest)
        if not text.strip():
            continue  # MT-RAG has passages of a title only
        chosen.append(Document(text, id=str(len(chosen) + 1), title=row.get("title") or None))
    return tuple(chosen[:num_documents])

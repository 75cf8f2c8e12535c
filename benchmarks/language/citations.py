"""Measure whether models cite the client's number of a document that was moved, and answer right.

    python -m benchmarks.language.citations --data FOLDER --model qwen-0.5b --json
    python -m benchmarks.language.citations --data FOLDER --model ... --part development
    python -m benchmarks.language.citations --data FOLDER --model ... --before CHECKOUT

A question about an invented sentence in one of four real documents, `Document 1: ...`, each of
which the product writes at another place than the client's. The model is asked to answer and to
cite the document, behind the answer; where it does not, it goes on from `(Document`. Arms: the
client's order, the product's request, with a note or the client's numbers, and as another checkout
writes it. The number that the model sees is mapped back to the client's in the product's arm, as
the proxy does it in an answer, and in no other. The same questions in all arms; wordings are chosen
on development questions and reported on test questions, of other seeds. Served by
`ragboost engine`, greedy; replies are kept in --parts.
"""

import json
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import torch

from benchmarks.command import make_parser, model_directory, report, show_rows
from benchmarks.language.cases import CountTokens
from benchmarks.language.cells import make_cases
from benchmarks.language.citation_requests import (
    BEFORE,
    PLAIN,
    PRODUCT,
    WRITINGS,
    CitationCase,
    write_cases,
)
from benchmarks.language.rewritten import Body
from ragboost.config import EngineSettings
from ragboost.config.model_directory import model_name
from ragboost.engine import create_engine_app
from ragboost.evaluation.bootstrap import MeanInterval, mean_interval, paired_difference
from ragboost.proxy.serving import serve_in_thread
from ragboost.util.text_scores import contains
from scripts.processes import exit_on_sigterm

NUM_DOCUMENTS, MAX_TOKENS = 4, 60
SEEDS = {"development": 1, "test": 2}
_CITED = re.compile(r"\(?Document\s*\[?(\w+)")
_BATCH = 16  # questions that are asked together: their documents stay in the prefix cache


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer, with what it cites."""

    answer: str
    cited: str  # a number, or what stands in its place
    is_free: bool  # cited without help


class Asker:
    """Asks a served model."""

    def __init__(self, url: str, model: str) -> None:
        self._client, self._model = httpx.Client(base_url=url, timeout=600), model

    def ask_all(self, requests: Iterable[Body]) -> list[Reply]:
        """Ask several requests at once; return the replies in their order."""
        with ThreadPoolExecutor(_BATCH) as pool:
            return list(pool.map(self.ask, requests))

    def ask(self, body: Body) -> Reply:
        answer = self._complete(body, max_tokens=24).partition("\n")[0].strip()
        if cited := _CITED.search(answer):
            return Reply(answer, cited[1], True)
        begun = f"{answer.partition('(')[0].rstrip(' .')} (Document"
        messages = [*body["messages"], {"role": "assistant", "content": begun}]
        fields = {"add_generation_prompt": False, "continue_final_message": True}
        rest = self._complete({"messages": messages, **fields}, max_tokens=10)
        number = re.match(r"\s*\[?(\w+)", rest)
        return Reply(answer, number[1] if number else "", False)

    def _complete(self, body: Body, *, max_tokens: int) -> str:
        fields = {**body, "model": self._model, "max_tokens": max_tokens, "temperature": 0}
        response = self._client.post("/v1/chat/completions", json=fields)
        response.raise_for_status()
        return str(response.json()["choices"][0]["message"]["content"])


def measure(args: Namespace) -> dict[str, Any]:
    """Ask the questions in every arm; return a row for each arm."""
    arms = [PLAIN, PRODUCT, *(args.arm or ()), *([BEFORE] if args.before else ())]
    torch.set_num_threads(args.threads)
    settings = EngineSettings(model=args.model, dtype=args.dtype)
    app = create_engine_app(settings)
    tokenizer = app.state.loaded.tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    drawn = make_cases(
        "needles1",
        args.data,
        count=args.questions,
        num_documents=NUM_DOCUMENTS,
        count_tokens=count_tokens,
        seed=SEEDS[args.part],
        longest=MAX_TOKENS,
    )
    cases = write_cases(drawn, arms, before=args.before)
    name = f"{Path(model_name(args.model)).name}-{args.dtype}"
    replies: dict[str, list[Reply]] = {arm: [] for arm in arms}
    with serve_in_thread(app) as url:
        asker = Asker(url, app.state.loaded.name)
        for at in range(0, len(cases), _BATCH):
            for arm in arms:  # documents are cached for the arms that differ in the note
                requests = [case.requests[arm] for case in cases[at : at + _BATCH]]
                replies[arm] += _ask(asker, requests, args.parts, name=name)
    rows = [make_row(arm, cases, replies, count=count_tokens) for arm in arms]
    return {"model": name, "part": args.part, "questions": len(cases), "rows": rows}


def _ask(asker: Asker, requests: Sequence[Body], parts: Path | None, *, name: str) -> list[Reply]:
    """Return the replies: read from a file of an earlier run, or asked for and written to it."""
    if parts is None:
        return asker.ask_all(requests)
    file = parts / f"{name}-{sha256(json.dumps(requests).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        replies = [asdict(reply) for reply in asker.ask_all(requests)]
        parts.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(replies))
        unfinished.rename(file)
    return [Reply(**row) for row in json.loads(file.read_text())]


def make_row(
    arm: str,
    cases: Sequence[CitationCase],
    replies: Mapping[str, Sequence[Reply]],
    *,
    count: CountTokens,
) -> dict[str, Any]:
    """Return the scores of an arm with intervals, and its differences to the client's order."""
    right = {
        name: _right(cases, found, is_mapped=name == PRODUCT) for name, found in replies.items()
    }
    groups = list(range(len(cases)))
    at_place = [r.cited == str(c.place) for c, r in zip(cases, replies[arm], strict=True)]
    row: dict[str, Any] = {"arm": arm}
    for at, score in enumerate(("citation", "answer")):
        values = right[arm][at]
        row[score] = _in_points(mean_interval(values, groups=groups))
        if arm != PLAIN:
            plain = right[PLAIN][at]
            row[f"{score}_gained"] = _in_points(paired_difference(plain, values, groups=groups))
    return {
        **row,
        "cites_place": round(100 * fmean(at_place), 1),
        "free": round(100 * fmean(reply.is_free for reply in replies[arm]), 1),
        "added_tokens": round(fmean(_added(case, arm, count) for case in cases), 2),
    }


def _right(
    cases: Sequence[CitationCase], replies: Sequence[Reply], *, is_mapped: bool
) -> tuple[list[float], list[float]]:
    """Return which replies cite the client's number, and which answer right.

    Args:
        is_mapped: the proxy maps the place that is cited to the client's number.
    """
    pairs = list(zip(cases, replies, strict=True))
    numbers = [case.place if is_mapped else case.number for case in cases]
    cited = [float(reply.cited == str(n)) for n, reply in zip(numbers, replies, strict=True)]
    return cited, [contains(reply.answer, case.answers) for case, reply in pairs]


def _added(case: CitationCase, arm: str, count: CountTokens) -> float:
    """Return the tokens that an arm adds for each document."""
    texts = [case.requests[name]["messages"][1]["content"] for name in (PLAIN, arm)]
    plain, written = map(count, texts)
    return (written - plain) / NUM_DOCUMENTS


def _in_points(interval: MeanInterval) -> list[float]:
    return [round(100 * value, 1) for value in (interval.mean, interval.low, interval.high)]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="corpus of the documents")
    parser.add_argument("--model", type=model_directory, required=True, help="name or directory")
    parser.add_argument("--part", choices=SEEDS, default="test")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--arm", choices=WRITINGS, action="append", help="repeatable")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of an earlier product")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", type=Path, help="keep replies here; a later run goes on")
    args = parser.parse_args()
    exit_on_sigterm()
    report(measure(args), args, lambda result: show_rows(result["rows"]))


if __name__ == "__main__":
    main()

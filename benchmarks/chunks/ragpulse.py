"""Simulate a week of a production service: prompt tokens that need not be computed.

    python -m benchmarks.chunks.ragpulse --data PATH --json
    python -m benchmarks.chunks.ragpulse --data PATH --shared   # cache and store share the size

PATH is RAGPulse's folder, or any trace that `ragboost bench trace` reads. Four arms: `plain`, the
prompts as they stand; `order`, the documents ordered by the product's Booster with the popularity
tail, behind text that `ordering.move_varying` has moved; `reuse`, the stored KV of documents reused
at any position, in the order of the trace; `both`, ordered, moved, and the rent-or-buy decision
between exact and reused documents. A share `--ratio` of reused tokens is recomputed and counts as
computed. The prefix cache evicts the least recently used; the store of documents' KV has the same
number of tokens and does so, too. A document is in the store once it was computed. Texts are not
made but for recognising what varies. `rent_or_buy` compares the ledger's cost with the optimum in
hindsight. Counts are of the simulator: times are for `ragboost bench trace` to measure.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import make_parser, report, show_rows
from ragboost.booster import Booster
from ragboost.bounded_map import BoundedMap
from ragboost.config import Settings
from ragboost.evaluation.traces import TracePart, TraceRequest, TraceTexts, read_trace
from ragboost.formats import make_formats
from ragboost.rewriting.parsed_request import parse_request
from ragboost.rewriting.varying_piece import VaryingPieces
from ragboost.simulate import SimulatedCache
from ragboost.types import Document

SIZES = {"200k": 200_000, "2m": 2_000_000}
_SCALE = 0.05  # words per token of the texts in which the varying piece is recognised

Parts = Sequence[TracePart]


class Prompt:
    """A request's parts as an arm sends them, equal documents once if it boosts."""

    def __init__(self, before: Parts, documents: Parts, behind: Parts) -> None:
        self.before, self.documents, self.behind = tuple(before), tuple(documents), tuple(behind)


def plain_prompt(request: TraceRequest) -> Prompt:
    return Prompt(request.before, request.documents, request.behind)


def moved_prompts(requests: Sequence[TraceRequest]) -> list[Prompt]:
    """Return the requests as the product sends them: what it recognises as varying is moved."""
    pieces, texts = VaryingPieces(max_messages=10_000), TraceTexts(scale=_SCALE)
    formats, prompts = make_formats(Settings()), []
    for request in requests:
        documents = tuple(dict.fromkeys(request.documents))
        body = {"model": "m", "messages": texts.messages(request)}
        parsed = parse_request(json.dumps(body).encode(), (), formats=formats)
        piece = pieces.observe(parsed)
        if piece is None or piece.span is None or not request.before:
            prompts.append(Prompt(request.before, documents, request.behind))
            continue
        start, cut = 0, len(request.before)
        for at, part in enumerate(request.before):
            if start >= piece.span[0]:
                cut = at
                break
            start += len(texts.of(part)) + len("\n\n")
        moved = (*request.before[cut:], *request.behind)
        prompts.append(Prompt(request.before[:cut], documents, moved))
    return prompts


class DocumentStore:
    """The KV of documents, by last use."""

    def __init__(self, capacity_tokens: int) -> None:
        self._stored: BoundedMap[TracePart, bool] = BoundedMap(
            max_entries=1_000_000, max_size=capacity_tokens
        )

    def has(self, part: TracePart) -> bool:
        return part in self._stored

    def use(self, part: TracePart) -> None:
        self._stored.put(part, True, size=part.tokens)


class Arm:
    """One engine, one request at a time.

    Args:
        orders: the Booster orders the documents and, with a ratio, decides what is bought.
        ratio: recompute ratio of reused documents; None: nothing is reused.
    """

    def __init__(
        self, *, cache_tokens: int, store_tokens: int, orders: bool, ratio: float | None
    ) -> None:
        self.computed_tokens = 0.0
        self._cache = SimulatedCache(lambda part: part.tokens, capacity_tokens=cache_tokens)
        self._store = DocumentStore(store_tokens)
        settings = {
            "ordering": {"tail": "popularity"},
            "index": {"capacity_tokens": cache_tokens},
            "hints": {"order": False},  # not counted: labels here are not those of a service
        }
        self.booster = Booster(Settings.model_validate(settings), count_tokens=_written_tokens)
        self._orders = orders
        self._ratio = ratio

    def send(self, prompt: Prompt) -> None:
        """Count what the engine computes of a prompt, and change its cache and store."""
        documents, num_exact = prompt.documents, 0
        if self._orders and documents:
            documents, num_exact = self._boosted(prompt)
        while num_exact < len(documents) and not self._is_reused(documents[num_exact]):
            num_exact += 1  # computed in any case, behind exact tokens only
        exact, reused = documents[:num_exact], documents[num_exact:]
        # Tokens behind an approximate one may not enter the prefix cache.
        behind = () if reused else prompt.behind
        used = self._cache.request([*prompt.before, *exact, *behind])
        self.computed_tokens += used.prompt_tokens - used.cached_tokens
        if self._orders and exact:  # as the engine's cache events say
            self.booster.record([_document(part) for part in exact], prompt_prefix=_prefix(prompt))
        for part in reused:
            share = self._ratio if self._ratio is not None and self._store.has(part) else 1.0
            self.computed_tokens += share * part.tokens
        if reused:
            self.computed_tokens += sum(part.tokens for part in prompt.behind)
        for part in documents:
            self._store.use(part)

    def _boosted(self, prompt: Prompt) -> tuple[tuple[TracePart, ...], int]:
        """Return the documents in the order sent, and how many of them are cached or bought."""
        sent = {_document(part): part for part in prompt.documents}
        context = self.booster.boost(
            "", list(sent), prompt_prefix=_prefix(prompt), recompute_ratio=self._ratio
        )
        assert context.index_entry is not None
        ordered = tuple([sent[document] for document in context.documents])
        return ordered, context.index_entry.num_exact or 0

    def _is_reused(self, part: TracePart) -> bool:
        return self._ratio is not None and self._store.has(part)


def _document(part: TracePart) -> Document:
    return Document(f"{part.name} {part.tokens}")


def _written_tokens(text: str) -> int:
    return int(text.rpartition(" ")[2])


def _prefix(prompt: Prompt) -> str:
    return repr(prompt.before)


def measure(requests: Sequence[TraceRequest], *, ratio: float, is_shared: bool) -> dict[str, Any]:
    """Replay all requests in all arms, at both sizes."""
    plain, moved = [plain_prompt(request) for request in requests], moved_prompts(requests)
    total = sum(request.prompt_tokens for request in requests)
    shares: dict[str, dict[str, float]] = {}
    ledgers: dict[str, float] = {}
    for size, tokens in SIZES.items():
        half = tokens // 2 if is_shared else tokens
        arms = {
            "plain": (plain, Arm(cache_tokens=tokens, store_tokens=0, orders=False, ratio=None)),
            "order": (moved, Arm(cache_tokens=tokens, store_tokens=0, orders=True, ratio=None)),
            "reuse": (plain, Arm(cache_tokens=half, store_tokens=half, orders=False, ratio=ratio)),
            "both": (moved, Arm(cache_tokens=half, store_tokens=half, orders=True, ratio=ratio)),
        }
        for name, (prompts, arm) in arms.items():
            for prompt in prompts:
                arm.send(prompt)
            # Repeated documents that are not sent again are not computed, either.
            shares.setdefault(name, {})[size] = round(1 - arm.computed_tokens / total, 4)
        ledger = arms["both"][1].booster.rents
        ledgers[size] = round(ledger.cost_tokens / max(1.0, ledger.optimum_tokens), 4)
    num_moved = sum(a.before != b.before for a, b in zip(plain, moved, strict=True))
    return {
        "requests": len(requests),
        "prompt_tokens": total,
        "ratio": ratio,
        "store": "shares the size with the cache" if is_shared else "as large as the cache",
        "moved": num_moved,
        "not_computed": shares,
        "rent_or_buy": ledgers,
    }


def show(result: dict[str, Any]) -> None:
    rows = [{"arm": name, **sizes} for name, sizes in result["not_computed"].items()]
    show_rows(rows, f"share of {result['prompt_tokens']:,} prompt tokens not computed, by cache")
    print(f"rent-or-buy, cost over the optimum: {result['rent_or_buy']}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a trace, or RAGPulse's folder")
    parser.add_argument("--limit", type=int, help="most requests; default: all")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute ratio")
    parser.add_argument("--shared", action="store_true", help="half cache, half store")
    args: argparse.Namespace = parser.parse_args()
    requests = read_trace(args.data, limit=args.limit)
    report(measure(requests, ratio=args.ratio, is_shared=args.shared), args, show)


if __name__ == "__main__":
    main()

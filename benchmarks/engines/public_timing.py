"""Measure what response times tell a tenant of another one's requests, in a real vLLM.

    python -m benchmarks.engines.public_timing --json

In each round one tenant asks for one of two documents, by a toss; then another tenant asks for
both, and guesses by the faster answer which one it was. `right` is the share of right guesses, with
a 95 % interval: .5 is chance.

- `public`: both documents are public. `same_counts`: the rounds in which both answers had the same
  numbers of loaded and computed tokens.
- `own`: the control. The documents are private, and the guessing tenant itself asked before.
"""

import argparse
import math
import random
import sys
import time
from typing import Any

from benchmarks.command import make_parser, report, show_figures
from benchmarks.engines.chunks_remote import make_documents
from ragboost.chunk_cache.http.chunk_client import ChunkClient
from ragboost.chunk_cache.http.precompute import prepare
from scripts.processes import exit_on_sigterm
from tests.engines.servers import EngineServer, missing

_KEY = "secret"
_OPTIONS = {"reuse": {"policy": "epic", "ratio": 0.15}}


class Tenant:
    """A tenant of the engine, whose requests are each about one document."""

    def __init__(self, server: EngineServer, name: str) -> None:
        self._client = ChunkClient(server.url, tenant=name, cache_salt=name)
        self._client.check()

    def ask(self, text: str, *, introduction: str = "") -> tuple[float, dict[str, int]]:
        """Return the seconds of the answer, and the origins of its prompt's tokens."""
        begin = len(introduction)
        messages = [{"role": "user", "content": f"{introduction}{text}\n\nWhat follows?"}]
        began = time.perf_counter()
        usage = self._client.complete(messages, [[0, begin, begin + len(text)]], _OPTIONS)
        return time.perf_counter() - began, usage.get("ragboost", {})


def guess(server: EngineServer, texts: list[str], *, is_public: bool) -> dict[str, Any]:
    """Let one tenant ask, and another one guess, in as many rounds as there are pairs."""
    toss = random.Random(1)
    guesser = Tenant(server, "b")
    asker = Tenant(server, "a") if is_public else guesser
    num_right = num_same = 0
    for number in range(0, len(texts), 2):
        pair = texts[number : number + 2]
        asked = toss.randrange(2)
        asker.ask(pair[asked])
        answers = {}
        for each in toss.sample((0, 1), 2):
            # A new beginning, so that it is no prefix of an earlier prompt.
            introduction = f"Note {toss.randrange(10**9)}.\n\n"
            answers[each] = guesser.ask(pair[each], introduction=introduction)
        guessed = min(answers, key=lambda each: answers[each][0])
        num_right += guessed == asked
        num_same += _told(answers[0][1]) == _told(answers[1][1])
    rounds = len(texts) // 2
    low, high = wilson(num_right, rounds)
    right = num_right / rounds
    return {"rounds": rounds, "right": right, "interval": [low, high], "same_counts": num_same}


def _told(origins: dict[str, int]) -> tuple[bool, bool]:
    """Return whether a document was taken from the store; lengths differ by its tokens."""
    return origins.get("reused", 0) > 0, origins.get("computed", 0) > origins.get("reused", 0)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z, share = 1.96, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    width = math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    width *= z / (1 + z * z / total)
    return middle - width, middle + width


def measure(args: argparse.Namespace) -> dict[str, Any]:
    texts = make_documents(4 * args.rounds, words=args.words)
    public, private = texts[: 2 * args.rounds], texts[2 * args.rounds :]
    settings = {"public_key": _KEY, "host_bytes": 2 << 30}
    options: dict[str, Any] = {"dtype": "float32", "events": "off", "chunks": settings}
    with EngineServer("vllm", shape=args.shape, **options) as server:
        client = ChunkClient(server.url, public_key=_KEY)
        client.check()
        prepare(
            client, public, [[]] * len(public), system=None, concurrency=1,
            on_progress=lambda *_: None,
        )  # fmt: skip
        return {
            "public": guess(server, public, is_public=True),
            "own": guess(server, private, is_public=False),
        }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--shape", choices=("tiny", "wide", "deep"), default="tiny")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--words", type=int, default=80, help="pairs of words in a document")
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing("vllm"):
        sys.exit(reason)
    report(measure(args), args, show_figures)


if __name__ == "__main__":
    main()

"""Count what agents share by the layout of their prompts, without an engine (section 7.1).

    python -m benchmarks.agents.layouts --data PATH --json

The chain of `benchmarks.agents.teams`, one request at a time, with an unbounded prefix cache in
blocks of 16. Tokens are words and punctuation marks. Layouts:

- `plain`: instructions in front, agent i reads the document of rank i;
- `agent_routing`: instructions in front, a document returns to the agent that has read it;
- `ragboost`: instructions behind the document, agent i reads the document of rank i;
- `shared_work`: what all agents are told in front, who the agent is behind the document.

Counts, which do not depend on the machine: docs/lab/agents.md.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents.roles import ARMS, Arm, Team, chain
from benchmarks.command import make_parser, report, show_columns
from benchmarks.datasets.retrieval import load_requests
from ragboost.types import Request
from scripts.http_client import Answer

LAYOUTS = {
    **{name: ARMS[name] for name in ("plain", "agent_routing", "ragboost")},
    "shared_work": Arm("shared_work", "cache_aware", is_boosted=True, is_work_shared=True),
}
_BLOCK_TOKENS = 16
_TOKEN = re.compile(r"\w+|[^\w\s]")


class CountedCache:
    """An unbounded prefix cache that counts the tokens of the prompts sent to it."""

    def __init__(self) -> None:
        self._blocks: set[tuple[int, tuple[str, ...]]] = set()

    def send(self, _path: str, body: Mapping[str, Any]) -> Answer:
        """Add the prompt of a chat completion; return its cached tokens and a made-up note."""
        tokens = _TOKEN.findall(render(body))
        parent, cached, is_cached = 0, 0, True
        for start in range(0, len(tokens) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
            block = parent, tuple(tokens[start : start + _BLOCK_TOKENS])
            # The last token is always computed.
            is_cached = is_cached and block in self._blocks and start + _BLOCK_TOKENS < len(tokens)
            cached += _BLOCK_TOKENS * is_cached
            self._blocks.add(block)
            parent = hash(block)
        usage = {
            "prompt_tokens": len(tokens),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return Answer(f"note {parent % 997}", usage)


def render(body: Mapping[str, Any]) -> str:
    """Render a chat completion; documents stand at the front of the last message."""
    *others, last = body["messages"]
    documents = body.get("ragboost", {}).get("documents", [])
    lines = [f"{message['role']}: {message['content']}" for message in others]
    lines += [f"{last['role']}:", *(f"[Doc_{each['id']}]\n{each['text']}" for each in documents)]
    return "\n".join([*lines, last["content"]])


def count(requests: Sequence[Request], *, layout: str, num_agents: int) -> dict[str, Any]:
    """Return the counts of a chain in one layout."""
    team = Team(CountedCache().send, num_agents=num_agents, arm=LAYOUTS[layout], note_tokens=8)
    for request in requests:
        chain(team, request)
    return {
        **team.figures(),
        "hit_rate": round(team.cached_tokens / max(team.prompt_tokens, 1), 4),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of a retrieval workload")
    parser.add_argument("--retriever", default="dense", help="retrieval run to use")
    parser.add_argument("--questions", type=int, default=150, help="questions, at most")
    parser.add_argument("--agents", type=int, default=15, help="agents, and documents each time")
    options = parser.parse_args()
    _, requests = load_requests(options.data, retriever=options.retriever, k=options.agents)
    requests = requests[: options.questions]
    keys = [document.key for request in requests for document in request.documents]
    result = {"questions": len(requests), "given": len(keys), "distinct": len(set(keys))}
    figures = {
        layout: count(requests, layout=layout, num_agents=options.agents) for layout in LAYOUTS
    }
    title = str(result)
    report({**result, "layouts": figures}, options, lambda _: show_columns(figures, title))


if __name__ == "__main__":
    main()

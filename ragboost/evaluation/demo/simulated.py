"""Replay the demo's workload without an engine: its orders are real, its prefix cache is simulated.

Lengths are estimates, a quarter of the characters. Knows no servers and no times.
"""

from collections.abc import AsyncGenerator

from ragboost.batch.simulate import SimulatedCache
from ragboost.booster.booster import Booster
from ragboost.config import IndexSettings, Settings
from ragboost.evaluation.demo.replay import PLAIN
from ragboost.evaluation.demo.workload import Workload, WorkloadTurn
from ragboost.evaluation.endpoint import StreamedAnswer
from ragboost.requests.wires.usage import Usage


async def simulate_replay(
    workload: Workload, *, boosted: bool, capacity_tokens: int
) -> AsyncGenerator[StreamedAnswer]:
    """Yield what an engine would report of each request, sessions first, then conversations."""
    index = IndexSettings(capacity_tokens=capacity_tokens)
    booster = Booster(Settings(index=index) if boosted else PLAIN)
    cache = SimulatedCache(lambda text: -(-len(text) // 4), capacity_tokens=capacity_tokens)

    def ask(turn: WorkloadTurn, history: list[str], session: str | None) -> StreamedAnswer:
        context = booster.boost(turn.question, turn.documents, session=session if boosted else None)
        history += [document.text for document in context.documents]
        history.append(context.render_question())
        hit, dropped = cache.request(history), len(context.retrieved) - len(context.documents)
        return StreamedAnswer("", Usage(hit.prompt_tokens, hit.cached_tokens), 0.0, dropped)

    for turn in workload.sessions:
        yield ask(turn, [], None)
    for number, turns in enumerate(workload.conversations):
        history: list[str] = []
        for turn in turns:
            yield ask(turn, history, f"demo-{number}")

"""Send the demo's requests to a chat server, one after another, over real HTTP and streams.

Without an engine the orders are real, the prefix cache is simulated, and there are no times.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from ragboost.batch.simulate import SimulatedCache
from ragboost.booster.booster import Booster
from ragboost.config import DedupSettings, HintSettings, IndexSettings, OrderingSettings, Settings
from ragboost.evaluation.demo.workload import Workload, WorkloadTurn
from ragboost.evaluation.endpoint import ChatEndpoint, StreamedAnswer
from ragboost.requests.wires.usage import Usage

MODEL = "demo"
# Documents in retriever order, each as often as it was retrieved.
PLAIN = Settings(
    ordering=OrderingSettings(enabled=False),
    dedup=DedupSettings(enabled=False),
    hints=HintSettings(order=False, location=False),
)

Message = dict[str, str]


class WorkloadAnswers(NamedTuple):
    sessions: list[StreamedAnswer]
    conversations: list[StreamedAnswer]


async def replay(
    workload: Workload, url: str, *, boosted: bool, max_tokens: int
) -> AsyncGenerator[StreamedAnswer]:
    """Send all sessions, then all conversations turn by turn with the whole history, and yield each
    answer; the next request is sent when its answer is asked for. Plain requests carry the
    documents in the prompt, as applications without RAGBoost write them."""
    async with aclosing(ChatEndpoint(url, model=MODEL, max_tokens=max_tokens)) as endpoint:
        for turn in workload.sessions:
            body = endpoint.body([_message(turn, boosted)], **_fields(turn, boosted))
            yield await endpoint.ask_streamed(body)
        for number, turns in enumerate(workload.conversations):
            messages: list[Message] = []
            for turn in turns:
                messages.append(_message(turn, boosted))
                fields = _fields(turn, boosted, session_id=f"demo-{number}")
                answer = await endpoint.ask_streamed(endpoint.body(messages, **fields))
                messages.append({"role": "assistant", "content": answer.text})
                yield answer


def _message(turn: WorkloadTurn, boosted: bool) -> Message:
    return {"role": "user", "content": turn.question if boosted else _plain_prompt(turn)}


def _fields(turn: WorkloadTurn, boosted: bool, **session: str) -> dict[str, Any]:
    documents = [{"id": d.id, "title": d.title, "text": d.text} for d in turn.documents]
    return {"ragboost": {"documents": documents, **session}} if boosted else {}


def _plain_prompt(turn: WorkloadTurn) -> str:
    """Return RAGBoost's prompt text with all documents in retriever order."""
    return Booster(PLAIN).boost(turn.question, turn.documents).render()


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

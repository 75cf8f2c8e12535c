"""Send the demo's requests to a chat server, one after another, over real HTTP and streams."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from ragboost.booster.booster import Booster
from ragboost.config import BackendSettings, DedupSettings, HintSettings, OrderingSettings, Settings
from ragboost.demo.workload import Workload, WorkloadTurn
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.streamed_chat import STREAMED, StreamedAnswer, ask_streamed

MODEL = "demo"

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
    async with aclosing(Backend(BackendSettings(url=url))) as client:
        for turn in workload.sessions:
            body = _body([], turn, boosted=boosted, max_tokens=max_tokens)
            yield await ask_streamed(client, body)
        for number, turns in enumerate(workload.conversations):
            history: list[Message] = []
            for turn in turns:
                body = _body(history, turn, boosted=boosted, max_tokens=max_tokens)
                if boosted:
                    body["ragboost"]["session_id"] = f"demo-{number}"
                answer = await ask_streamed(client, body)
                history = [*body["messages"], {"role": "assistant", "content": answer.text}]
                yield answer


def _body(
    history: list[Message], turn: WorkloadTurn, *, boosted: bool, max_tokens: int
) -> dict[str, Any]:
    content = turn.question if boosted else _plain_prompt(turn)
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [*history, {"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        **STREAMED,
    }
    if boosted:
        documents = [{"id": d.id, "title": d.title, "text": d.text} for d in turn.documents]
        body["ragboost"] = {"documents": documents}
    return body


def _plain_prompt(turn: WorkloadTurn) -> str:
    """Return RAGBoost's prompt text with all documents in retriever order."""
    plain = Settings(
        ordering=OrderingSettings(enabled=False),
        dedup=DedupSettings(enabled=False),
        hints=HintSettings(order=False, location=False),
    )
    return Booster(plain).boost(turn.question, turn.documents).render()

"""Conversations with a cluster, by clients that repeat a request that fails.

Half of them keep their history and name themselves by `x-ragboost-session`, the others use chat
sessions. Knows the proxy's HTTP API. Does not know who serves it.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from ragboost.types import Document
from scripts.cluster import REPLICA_HEADER

MAX_TRIES = 150
_PAUSE_S = 0.2
_FAILURES = (aiohttp.ClientError, TimeoutError, ValueError)

Json = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One answered turn, or one that was given up.

    Attributes:
        talk: name of its conversation.
        number: of the turn in it.
        ended: time on the monotonic clock.
        prompt_tokens: reported by the engine.
        cached_tokens: likewise.
        ttft_s: until the first text of the answer, in the try that succeeded.
        tries: that it took.
        replica: that answered.
        is_lost: no try was answered.
    """

    talk: str
    number: int
    ended: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0
    tries: int = 1
    replica: str = ""
    is_lost: bool = False


@dataclass
class Talk:
    """One conversation.

    Attributes:
        name: unique.
        turns: question and documents of each.
        is_session: the proxy keeps the history.
    """

    name: str
    turns: Sequence[tuple[str, Sequence[Document]]]
    is_session: bool
    messages: list[Json] = field(default_factory=list)
    session: str = ""


class ClusterClient:
    """A client of the cluster.

    Args:
        urls: asked in turn.
        model: name of the model.

    Attributes:
        turns: answered or lost, in order.
        num_doubled: chat sessions that hold more turns than were asked.
    """

    def __init__(self, urls: Sequence[str], *, model: str) -> None:
        self.turns: list[Turn] = []
        self.num_doubled = 0
        self._urls = urls
        self._model = model
        self._num_asked = 0
        self._progress = asyncio.Event()

    async def __aenter__(self) -> "ClusterClient":
        timeout = aiohttp.ClientTimeout(total=120)
        self._http = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def converse(self, talk: Talk) -> None:
        """Ask all turns of a conversation, one after the other."""
        for number in range(len(talk.turns)):
            await self.ask(talk, number)
        if talk.session:
            stored = await self._stored(talk)
            self.num_doubled += stored is not None and stored > len(talk.turns)

    async def ask(self, talk: Talk, number: int) -> Turn:
        """Ask one turn until it is answered, or `MAX_TRIES` times."""
        for tries in range(1, MAX_TRIES + 1):
            try:
                if tries > 1 and talk.session and (await self._stored(talk) or 0) > number:
                    turn = Turn(talk.name, number, time.monotonic(), tries=tries)
                else:
                    turn = await self._try(talk, number, tries)
                break
            except _FAILURES:
                await asyncio.sleep(_PAUSE_S)
        else:
            turn = Turn(talk.name, number, time.monotonic(), tries=tries, is_lost=True)
        self.turns.append(turn)
        self._progress.set()
        self._progress = asyncio.Event()
        return turn

    async def until(self, num: int) -> None:
        """Wait until so many turns have been answered or lost."""
        while len(self.turns) < num:
            await self._progress.wait()

    async def _try(self, talk: Talk, number: int, tries: int) -> Turn:
        question, found = talk.turns[number]
        documents = [{"id": d.id, "title": d.title, "text": d.text} for d in found]
        body: Json = {"model": self._model, "max_tokens": 8, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        headers = {}
        if talk.is_session:
            if not talk.session:
                created = await self._json("POST", "/v1/sessions", {"model": self._model})
                talk.session = created["id"]
            path = f"/v1/sessions/{talk.session}/chat/completions"
            body |= {"query": question, "documents": documents}
        else:
            path = "/v1/chat/completions"
            headers["x-ragboost-session"] = talk.name
            body["messages"] = [*talk.messages, {"role": "user", "content": question}]
            body["ragboost"] = {"documents": documents}
        started = time.monotonic()
        url = self._next_url()
        async with self._http.post(url + path, json=body, headers=headers) as response:
            response.raise_for_status()
            answer = await _read(response, started)
            replica = response.headers.get(REPLICA_HEADER, url)
        if not talk.is_session:
            reply = {"role": "assistant", "content": answer.text}
            talk.messages = [*body["messages"], reply]
        usage = answer.usage
        return Turn(
            talk.name,
            number,
            time.monotonic(),
            usage["prompt_tokens"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            answer.ttft_s,
            tries,
            replica,
        )

    async def _stored(self, talk: Talk) -> int | None:
        """Return the turns that a chat session holds, or None where it is not known now."""
        try:
            found = await self._json("GET", f"/v1/sessions/{talk.session}")
        except _FAILURES:
            return None
        return int(found["num_turns"])

    async def _json(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self._http.request(method, self._next_url() + path, json=body) as response:
            response.raise_for_status()
            found: Json = await response.json()
            return found

    def _next_url(self) -> str:
        self._num_asked += 1
        return self._urls[self._num_asked % len(self._urls)]


@dataclass
class _Answer:
    text: str = ""
    ttft_s: float = 0.0
    usage: Json = field(default_factory=dict)


async def _read(response: aiohttp.ClientResponse, started: float) -> _Answer:
    """Read a stream to its end.

    Raises:
        ValueError: it has no end, or no usage.
    """
    answer, is_complete = _Answer(), False
    async for line in response.content:
        data = line.strip().removeprefix(b"data: ")
        is_complete = is_complete or data == b"[DONE]"
        if not data.startswith(b"{"):
            continue
        event = json.loads(data)
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                answer.ttft_s = answer.ttft_s or time.monotonic() - started
                answer.text += text
    if not (is_complete and answer.usage):
        raise ValueError("the stream ended early")
    return answer


def hit_rate(turns: Sequence[Turn]) -> float:
    """Return the share of prompt tokens that were cached."""
    prompt = sum(turn.prompt_tokens for turn in turns)
    return sum(turn.cached_tokens for turn in turns) / prompt if prompt else 0.0


def num_moved(turns: Sequence[Turn]) -> int:
    """Return the number of conversations that more than one replica has served."""
    served: dict[str, set[str]] = {}
    for turn in turns:
        if turn.replica:
            served.setdefault(turn.talk, set()).add(turn.replica)
    return sum(len(replicas) > 1 for replicas in served.values())

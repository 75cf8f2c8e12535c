"""Conversations with a cluster, by clients that repeat a request that fails.

Half of them keep their history and name themselves by `x-ragboost-session`, the others use chat
sessions. Knows the proxy's HTTP API. Does not know who serves it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from ragboost.types import Document
from scripts.cluster import REPLICA_HEADER
from scripts.http_client import CHAT, Json, ask_async

MAX_TRIES = 150
_PAUSE_S = 0.2
_FAILURES = (httpx.HTTPError, ValueError)


@dataclass(frozen=True)
class Turn:
    """One answered turn, or one that was given up."""

    talk: str
    number: int
    ended: float  # on the monotonic clock
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float = 0.0  # in the try that succeeded
    tries: int = 1
    replica: str = ""
    is_lost: bool = False  # no try was answered


@dataclass
class Talk:
    """One conversation."""

    name: str
    turns: Sequence[tuple[str, Sequence[Document]]]  # question and documents of each
    is_session: bool  # the proxy keeps the history
    messages: list[Json] = field(default_factory=list)
    session: str = ""


class ClusterClient:
    """A client of the cluster, which asks its URLs in turn."""

    def __init__(self, urls: Sequence[str], *, model: str) -> None:
        self.turns: list[Turn] = []  # answered or lost, in order
        self.num_doubled = 0  # chat sessions that hold more turns than were asked
        self._urls = urls
        self._model = model
        self._num_asked = 0
        self._progress = asyncio.Event()

    async def __aenter__(self) -> "ClusterClient":
        self._http = httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def converse(self, talk: Talk) -> None:
        """Ask all turns of a conversation, one after the other."""
        for number in range(len(talk.turns)):
            await self.ask(talk, number)
        if talk.session:
            stored = await self._stored(talk, self._urls[self._next_start() % len(self._urls)])
            self.num_doubled += stored is not None and stored > len(talk.turns)

    async def ask(self, talk: Talk, number: int) -> Turn:
        """Ask one turn until it is answered, or `MAX_TRIES` times; each try asks the next URL.

        A try stays with one URL: if it asked two, each second request would go to the same one,
        and all tries of a turn could end at the replica that is down.
        """
        start = self._next_start()
        for tries in range(1, MAX_TRIES + 1):
            url = self._urls[(start + tries) % len(self._urls)]
            try:
                if tries > 1 and talk.session and (await self._stored(talk, url) or 0) > number:
                    turn = Turn(talk.name, number, time.monotonic(), tries=tries)
                else:
                    turn = await self._try(talk, number, tries, url=url)
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

    async def _try(self, talk: Talk, number: int, tries: int, *, url: str) -> Turn:
        question, found = talk.turns[number]
        documents = [{"id": d.id, "title": d.title, "text": d.text} for d in found]
        body: Json = {"model": self._model, "max_tokens": 8}
        headers = {}
        if talk.is_session:
            if not talk.session:
                created = await self._json("POST", f"{url}/v1/sessions", {"model": self._model})
                talk.session = created["id"]
            path = f"/v1/sessions/{talk.session}/chat/completions"
            body |= {"query": question, "documents": documents}
        else:
            path = CHAT
            headers["x-ragboost-session"] = talk.name
            body["messages"] = [*talk.messages, {"role": "user", "content": question}]
            body["ragboost"] = {"documents": documents}
        answer = await ask_async(self._http, url + path, body, headers=headers)
        if not answer.is_complete:
            raise ValueError("the stream ended early")
        if not talk.is_session:
            reply = {"role": "assistant", "content": answer.text}
            talk.messages = [*body["messages"], reply]
        return Turn(
            talk.name,
            number,
            time.monotonic(),
            answer.prompt_tokens,
            answer.cached_tokens,
            answer.ttft_s,
            tries,
            answer.headers.get(REPLICA_HEADER, url),
        )

    async def _stored(self, talk: Talk, url: str) -> int | None:
        """Return the turns that a chat session holds, or None where it is not known now."""
        try:
            found = await self._json("GET", f"{url}/v1/sessions/{talk.session}")
        except _FAILURES:
            return None
        return int(found["num_turns"])

    async def _json(self, method: str, url: str, body: Json | None = None) -> Json:
        response = await self._http.request(method, url, json=body)
        response.raise_for_status()
        found: Json = response.json()
        return found

    def _next_start(self) -> int:
        self._num_asked += 1
        return self._num_asked


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

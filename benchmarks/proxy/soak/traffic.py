"""The clients of `benchmarks.proxy.soak`: conversations of all kinds, and odd requests, at a fixed
rate.

Knows the proxy's HTTP API. Does not know when backends are restarted.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from benchmarks.proxy.soak.odd import odd_request, stall
from scripts.http_client import CHAT, Json

_DOCUMENTS = 500  # so few that all of them are met within the warm-up
_TURNS = 6
_TALKS = 24  # conversations at a time
_MAX_RUNNING = 32  # more at once would be a busy machine's, whose peaks malloc keeps


@dataclass
class Outcome:
    """How one request ended; times are on the monotonic clock."""

    started: float
    ended: float
    problem: str = ""


@dataclass
class Talk:
    """One conversation."""

    kind: str  # the way in which documents are handed over
    name: str
    messages: list[Json] = field(default_factory=list)  # the history, if the client keeps it
    session: str = ""  # id of its chat session
    turns: int = 0  # answered so far


class Traffic:
    """Send requests at a fixed rate a second, whether earlier ones are answered or not."""

    def __init__(self, url: str, *, rate: float, seed: int) -> None:
        self.outcomes: deque[Outcome] = deque(maxlen=200_000)
        self.counts: Counter[str] = Counter()  # by kind
        self.num_not_sent = 0  # too many had no answer yet
        self.num_answered = 0
        self._url = url
        self._rate = rate
        self._rng = random.Random(seed)
        self._talks: list[Talk] = []
        self._running: set[asyncio.Task[None]] = set()
        self._num_talks = 0
        words = [f"word{i}" for i in range(400)]
        self._documents = [
            {"id": f"d{i}", "text": f"Document {i}: {' '.join(self._rng.choices(words, k=60))}."}
            for i in range(_DOCUMENTS)
        ]
        self._ways: dict[str, Callable[[httpx.AsyncClient, Talk], Awaitable[str]]] = {
            "ragboost object": self._stateless,
            "document tags": self._stateless,
            "named": self._stateless,
            "chat session": self._session_turn,
            "leaves": self._leave,
            "odd": self._odd,
            "stalls": self._stall,
        }

    async def run(self, until: float) -> None:
        """Send requests until a time on the monotonic clock, and wait for the last answers."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=60, limits=limits) as client:
            due = time.monotonic()
            while due < until:
                due += self._rng.expovariate(self._rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if len(self._running) >= _MAX_RUNNING:
                    self.num_not_sent += 1
                    continue
                task = asyncio.create_task(self._one(client))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await asyncio.gather(*self._running)

    async def _one(self, client: httpx.AsyncClient) -> None:
        talk = self._next_talk()
        self.counts[talk.kind] += 1
        started = time.monotonic()
        try:
            problem = await self._ways[talk.kind](client, talk)
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"[:200]
        self.outcomes.append(Outcome(started, time.monotonic(), problem))
        self.num_answered += 1
        talk.turns += 1
        if talk.turns < _TURNS:
            self._talks.append(talk)
        elif talk.session:
            await self._delete(client, talk)

    def _next_talk(self) -> Talk:
        """Return a conversation that nobody else is using until it is put back."""
        if len(self._talks) < _TALKS:
            self._num_talks += 1
            kinds = list(self._ways)
            kind = self._rng.choices(kinds, (4, 2, 1, 2, 1, 4, 1))[0]
            return Talk(kind, f"talk-{self._num_talks}")
        return self._talks.pop(self._rng.randrange(len(self._talks)))

    def _body(self, talk: Talk) -> Json:
        """Return the body of the next turn, and add its message to the history."""
        rng = self._rng
        found = [self._documents[int(_DOCUMENTS * rng.random() ** 3)] for _ in range(6)]
        question = f"Question {talk.turns} of {talk.name}?"
        body: Json = {"model": "m", "stream": rng.random() < 0.4}
        if talk.kind == "document tags":
            tags = "\n".join(f'<document id="{d["id"]}">{d["text"]}</document>' for d in found)
            question = f"{tags}\n\n{question}"
        else:
            body["ragboost"] = {"documents": found}
        if talk.kind == "named":
            body["ragboost"]["session_id"] = talk.name
        talk.messages.append({"role": "user", "content": question})
        return {**body, "messages": talk.messages}

    async def _stateless(self, client: httpx.AsyncClient, talk: Talk) -> str:
        body = self._body(talk)
        response = await client.post(CHAT, json=body)
        text, problem = _read(response, is_stream=body["stream"])
        if problem:
            talk.messages.pop()
        else:
            talk.messages.append({"role": "assistant", "content": text})
        return problem

    async def _session_turn(self, client: httpx.AsyncClient, talk: Talk) -> str:
        if not talk.session:
            response = await client.post("/v1/sessions", json={"model": "m"})
            if response.status_code != 201:
                return f"status {response.status_code}"
            talk.session = response.json()["id"]
        body = self._body(talk)
        body["messages"], talk.messages = body["messages"][-1:], []
        path = f"/v1/sessions/{talk.session}/chat/completions"
        response = await client.post(path, json=body)
        return _read(response, is_stream=body["stream"])[1]

    async def _delete(self, client: httpx.AsyncClient, talk: Talk) -> None:
        started, problem = time.monotonic(), ""
        try:
            status = (await client.delete(f"/v1/sessions/{talk.session}")).status_code
            problem = "" if status == 200 else f"delete: status {status}"
        except httpx.HTTPError as error:
            problem = f"delete: {type(error).__name__}"
        self.outcomes.append(Outcome(started, time.monotonic(), problem))

    async def _leave(self, client: httpx.AsyncClient, talk: Talk) -> str:
        """Disconnect before the answer, or after its first bytes."""
        body = {**self._body(talk), "stream": True}
        talk.messages = []
        if self._rng.random() < 0.5:
            try:
                async with asyncio.timeout(0.003):
                    await client.post(CHAT, json=body)
            except TimeoutError:
                pass
            return ""
        async with client.stream("POST", CHAT, json=body) as response:
            await anext(response.aiter_raw(), b"")
        return ""

    async def _odd(self, client: httpx.AsyncClient, talk: Talk) -> str:
        """Send one odd request; any answer but an internal error is right."""
        talk.turns = _TURNS
        odd = odd_request(self._rng, self._num_talks)
        response = await client.request(
            odd.method, odd.path, content=odd.content, headers=list(odd.headers)
        )
        return f"status 500 for {odd.path}" if response.status_code == 500 else ""

    async def _stall(self, client: httpx.AsyncClient, talk: Talk) -> str:
        talk.turns = _TURNS
        await stall(self._url, self._rng, self._num_talks)
        return ""


def _read(response: httpx.Response, *, is_stream: bool) -> tuple[str, str]:
    """Return the answer's text, and the problem if there is none."""
    if response.status_code != 200:
        return "", f"status {response.status_code}: {response.text[:160]}"
    data = response.content
    if not is_stream:
        return str(response.json()["choices"][0]["message"]["content"]), ""
    if not data.rstrip().endswith(b"data: [DONE]"):
        return "", f"the stream ended early: {data[-80:]!r}"
    return data[:40].decode(), ""  # the history need not be right, only long

"""Run episodes of applications against one proxy: each with several tenants, in the driver's loop.

A seed decides everything, so that an episode can be repeated.
"""

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.backend import Answer, Backend, encode_answer
from tests.fuzz.driver import Call, Report, in_process, serving
from tests.fuzz.oracle import Fault
from tests.fuzz.payload import Payload
from tests.fuzz.requests import Reply
from tests.fuzz.texts.applications import ANSWER, Application, TextRequest
from tests.fuzz.texts.oracle import Reader, difference
from tests.fuzz.worlds import World

TENANTS = ("ann", "bob", "cleo")
TEXT_WORLDS = (
    World("texts, as shipped", keys=TENANTS),
    World(
        "texts, numbers kept",
        {"formats": {"numbers": "keep"}},
        keys=TENANTS,
    ),
    World("texts, no references", {"dedup": {"enabled": False}}, keys=TENANTS),
)
_APPLICATIONS = 6
_LIFE = 30  # requests of one application, about
_HANG_S = 120.0

See = Callable[[TextRequest, bytes, Reply], None]


@dataclass(frozen=True)
class TextEpisode:
    """A number of requests to one app, one after the other.

    Attributes:
        seed: of the run.
        number: of the episode in the run; chooses the world.
        size: requests.
        is_served: requests are sent over HTTP to the proxy's server.
    """

    seed: int
    number: int
    size: int = 250
    is_served: bool = False

    @property
    def world(self) -> World:
        """The settings of the proxy."""
        return TEXT_WORLDS[self.number % len(TEXT_WORLDS)]

    def run(self, report: Report, *, see: See | None = None) -> None:
        """Run the episode in a new event loop, and add to a report.

        Args:
            report: gets counts and failures; its moves count requests by what was found.
            see: called with each request, what the backend received, and the reply.
        """
        import uvloop

        with tempfile.TemporaryDirectory() as folder:
            uvloop.run(self._run(report, Path(folder), see))

    async def _run(self, report: Report, folder: Path, see: See | None) -> None:
        backend = Backend()
        settings = self.world.settings([await backend.listen()], folder, redis_url=None)
        opened = serving(settings, backend) if self.is_served else in_process(settings, backend)
        rng = random.Random(f"texts.{self.seed}.{self.number}")
        async with opened as call:
            applications: list[Application] = []
            for number in range(1, self.size + 1):
                application = _choose(rng, applications, number)
                request = application.ask(number)
                await self._exchange(call, backend, application, request, report, see)
        await backend.close()

    async def _exchange(
        self,
        call: Call,
        backend: Backend,
        application: Application,
        request: TextRequest,
        report: Report,
        see: See | None,
    ) -> None:
        answer = Answer(ANSWER)
        backend.expect(request.number, answer)
        reply = await asyncio.wait_for(call(request), _HANG_S)
        bodies = backend.forget(request.number)
        body = bodies[-1] if bodies else b""
        report.requests += 1
        report.moves[_outcome(request, body, reply)] += 1
        for fault in check(request, bodies, reply):
            report.counts[fault.kind] += 1
            is_new = (fault.kind, request.about) not in application.faults
            application.faults.add((fault.kind, request.about))
            if is_new and len(report.failures) < 200:
                case = f"{self.seed}.t{self.number}.{request.number}"
                report.failures.append((case, fault))
        if see is not None:
            see(request, body, reply)
        if body:
            application.received(Payload(body.decode()).messages, text_of(reply.body))


def _choose(rng: random.Random, applications: list[Application], number: int) -> Application:
    """Return an application for the next request; old ones end, and new ones begin."""
    applications[:] = [each for each in applications if each.num_asked < _LIFE]
    if len(applications) < _APPLICATIONS:
        applications.append(Application(rng, rng.choice(TENANTS), number=number))
    return rng.choice(applications)


def _outcome(request: TextRequest, body: bytes, reply: Reply) -> str:
    """Name what the proxy did, for the report."""
    if not any(text.layout for text in request.texts):
        is_given = request.elements or any(text.documents for text in request.texts)
        return "documents beside texts" if is_given else "texts without documents"
    is_found = dict(reply.headers).get(b"x-ragboost-documents", b"0") != b"0"
    is_same = _texts_of(body) == [text.written for text in request.texts]
    return f"texts {'found' if is_found else 'not found'}, {'same' if is_same else 'rewritten'}"


def check(request: TextRequest, bodies: list[bytes], reply: Reply) -> Iterator[Fault]:
    """Yield the faults of one request."""
    answer = text_of(reply.body) if reply.status == 200 else ""
    if not answer or json.loads(reply.body) != json.loads(
        encode_answer(request.path, Answer(answer))
    ):
        yield Fault(
            "crash" if reply.status == 500 else "response", f"{reply.status} {request.about}"
        )
    for body in bodies:
        for kind, detail in _check_body(request, body, answer):
            yield Fault(kind, f"{request.about}: {detail}")


def text_of(answer: bytes) -> str:
    """Return the text of a response; empty if there is none."""
    try:
        fields = json.loads(answer)
    except ValueError:
        return ""
    if "content" in fields:
        return str(fields["content"][0]["text"])
    choice = fields["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _check_body(request: TextRequest, body: bytes, answer: str) -> Iterator[tuple[str, str]]:
    try:
        payload = Payload(body.decode())
    except ValueError as error:
        yield "changed", f"the body is no JSON: {error}"
        return
    yield from _check_fields(request, payload.decoded)
    for at, (before, now) in enumerate(zip(request.sent, payload.messages, strict=False)):
        is_answer = json.loads(before).get("role") == "assistant"  # under other instructions
        if json.loads(before) != json.loads(now) and not (is_answer and request.outside):
            yield "not identical", f"message {at}: {difference(before, now)}"
    texts, received = request.texts, _texts_of(body)
    if len(texts) != len(received):
        yield "changed", f"{len(received)} texts of {len(texts)}"
        return
    reader = Reader(bool(request.elements) or any(text.documents for text in texts))
    for text, now in zip(texts, received, strict=True):
        yield from reader.check(text, now)
    if answer and not reader.cites_alike(answer, ANSWER):
        yield "citation", f"{reader.numbers}: {answer}"


def _check_fields(request: TextRequest, decoded: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Compare all but the texts: fields, roles, calls, the number of messages and parts."""
    listed = {json.dumps(element) for element in decoded.get("documents", ())}
    if listed != {json.dumps(element) for element in request.elements}:
        yield "changed", f"documents: {listed}"
    now, mine = _without_texts(decoded), _without_texts(json.loads(request.body))
    if now != mine:
        yield "changed", difference(json.dumps(mine), json.dumps(now))


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        is_text = ("content", "text", "prompt", "system")
        return {
            name: "" if name in is_text and isinstance(item, str) else _without_texts(item)
            for name, item in value.items()
            if name not in ("documents", "ragboost")
        }
    return [_without_texts(item) for item in value] if isinstance(value, list) else value


def _texts_of(body: bytes) -> list[str]:
    """Return the texts of a body, in the order of `TextRequest.texts`."""
    if not body:
        return []
    decoded = json.loads(body)
    texts = [decoded[name] for name in ("prompt", "system") if name in decoded]
    for message in decoded.get("messages", ()):
        content = message["content"]
        parts = content if isinstance(content, list) else [content]
        texts += [part["text"] if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if text is not None]

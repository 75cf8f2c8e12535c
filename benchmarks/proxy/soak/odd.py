"""Odd requests for `benchmarks.proxy.soak`: what fills caches, is refused, or never ends.

Knows bytes. Does not know conversations.
"""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scripts.http_client import CHAT

_LARGE_WORDS = 6000  # of a document: texts of documents are kept up to 32 MB
_STALLED_S = 2.0


class OddRequest(NamedTuple):
    path: str
    content: bytes
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


def odd_request(rng: random.Random, number: int) -> OddRequest:
    """Return a request that any server may get, with names and texts of its own."""
    return rng.choice(_KINDS)(rng, number)


def _large(rng: random.Random, number: int) -> OddRequest:
    texts = [f"Text {number}.{i}: " + rng.randbytes(8).hex() * _LARGE_WORDS for i in range(3)]
    return OddRequest(CHAT, chat(texts))


def _new_names(rng: random.Random, number: int) -> OddRequest:
    fields = {"model": f"model-{number}", "cache_salt": f"salt {number}", "user": f"user-{number}"}
    name = rng.choice(list(fields))
    headers = (("authorization", f"Bearer k{number}"),) if rng.random() < 0.3 else ()
    session = {"session_id": f"name-{number}"} if rng.random() < 0.3 else {}
    return OddRequest(
        CHAT, chat(_notes(number), **{name: fields[name]}, **session), headers=headers
    )


def _malformed(rng: random.Random, number: int) -> OddRequest:
    bodies = (
        chat([{"text": number}, None, [], {"id": {}}]),
        chat([f"d{i}" for i in range(11_000)]),
        b'{"messages":' + b"[" * rng.randint(1, 5000),
        chat(_notes(number)).decode().encode("utf-16"),
        b'{"model": NaN, "messages": [{"role": 7}]}',
        b" " * 1_100_000,
    )
    return OddRequest(CHAT, rng.choice(bodies))


def _elsewhere(rng: random.Random, number: int) -> OddRequest:
    prompt = json.dumps({"prompt": "\n" * 20_000}).encode()
    session = json.dumps({"metadata": {"n": f"{number}"}}).encode()
    return rng.choice(
        (
            OddRequest("/v1/completions", prompt),
            OddRequest("/v1/sessions", session),  # which nobody deletes
            OddRequest(f"/v1/sessions/sess_{number}", b"", "DELETE"),
            OddRequest(f"/v1/files/{number}/%0a%ff", b"x", rng.choice(("GET", "PUT", "PATCH"))),
        )
    )


def _notes(number: int) -> list[Any]:
    return [f"Note {number}.{i}" for i in range(3)]


_KINDS = (_large, _new_names, _malformed, _elsewhere)


def chat(documents: list[Any], **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    ours = {"documents": documents}
    return json.dumps({"model": "m", "messages": messages, "ragboost": ours, **fields}).encode()


async def stall(url: str, rng: random.Random, number: int) -> None:
    """Stop in the middle: of a head, of a body, of several, or in reading a stream; then leave."""
    parts, body = urlsplit(url), chat([f"Note {number}"], stream=True)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n"
    whole = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    chunked = f"{head}transfer-encoding: chunked\r\n\r\n".encode() + b"%x\r\n" % len(body) + body
    data = rng.choice((whole, whole * 20, chunked + b"\r\n0\r\n\r\n" + whole, chunked))
    data = data[: rng.randint(1, len(data))] if rng.random() < 0.7 else data
    with suppress(OSError):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(data)
        await asyncio.sleep(rng.random() * _STALLED_S)
        writer.transport.abort()

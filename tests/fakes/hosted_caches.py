"""Prompt caches of hosted APIs, simulated by their documented rules.

Reads marked request bodies, as an API does, and counts tokens read, written and neither. Shares no
code with the room that sets the marks. A token is four characters.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MARKS = ("cache_control", "prompt_cache_breakpoint")
_CHARACTERS_PER_TOKEN = 4


class SimulatedBlock(NamedTuple):
    """A block as the API sees it: hash of and tokens in the prompt up to its end, and its mark."""

    key: bytes
    tokens: int
    mark: Mapping[str, str] | None


@dataclass
class Bill:
    """Tokens of all requests: read from the cache, written for 5 minutes or an hour, neither."""

    read: int = 0
    written: int = 0
    long_written: int = 0
    plain: int = 0

    def cost(self, price: float, *, read: float, write: float, long_write: float) -> float:
        """Return the cost at a price of a million plain tokens and its multiples."""
        weighted = (
            self.plain + read * self.read + write * self.written + long_write * self.long_written
        )
        return weighted * price / 1e6


@dataclass
class BreakpointCache:
    """A cache that stores prefixes at marks and finds them there.

    Args:
        lifetimes: seconds by the mark's `ttl`; "" without one.
        lookback: blocks up to a mark that are looked at, with its own.
        min_tokens: shorter prefixes are not stored.
        implicit: mark the last block of every request, too (OpenAI's default mode).
    """

    lifetimes: Mapping[str, float]
    lookback: int
    min_tokens: int = 1024
    implicit: bool = False
    bill: Bill = field(default_factory=Bill)
    _entries: dict[bytes, tuple[float, float]] = field(default_factory=dict)  # end, lifetime

    def send(self, body: Mapping[str, Any], now: float) -> None:
        """Bill one request; it ends before the next one begins."""
        blocks = list(blocks_of(body))
        marked = [at for at, block in enumerate(blocks) if block.mark is not None]
        assert len(marked) <= 4, "the API refuses a fifth mark"
        if self.implicit and len(blocks) - 1 not in marked:
            marked.append(len(blocks) - 1)
        hit = self._find(blocks, marked, now)
        read = blocks[hit].tokens if hit is not None else 0
        for block in blocks[: 0 if hit is None else hit + 1]:  # what is used is renewed
            end, lifetime = self._entries.get(block.key, (0.0, 0.0))
            if end > now:
                self._entries[block.key] = (now + lifetime, lifetime)
        done, longest = read, None
        for at in marked:
            ttl = (blocks[at].mark or {}).get("ttl", "")
            assert longest is None or self.lifetimes[ttl] <= longest, "a longer ttl comes first"
            longest = self.lifetimes[ttl]
            if blocks[at].tokens < self.min_tokens or (hit is not None and at <= hit):
                continue
            if ttl == "1h":
                self.bill.long_written += blocks[at].tokens - done
            else:
                self.bill.written += blocks[at].tokens - done
            done = blocks[at].tokens
            self._entries[blocks[at].key] = (now + longest, longest)
        self.bill.read += read
        self.bill.plain += blocks[-1].tokens - done

    def _find(self, blocks: list[SimulatedBlock], marked: list[int], now: float) -> int | None:
        for mark in reversed(marked):
            for at in range(mark, max(-1, mark - self.lookback), -1):
                entry = self._entries.get(blocks[at].key)
                if entry is not None and entry[0] > now:
                    return at
        return None


@dataclass
class AutomaticCache:
    """OpenAI's automatic cache before GPT-5.6: whole prefixes, on the machine a key leads to.

    A machine takes about 15 requests a minute with one beginning and key; others overflow.
    """

    lifetime: float = 300.0
    min_tokens: int = 1024
    step: int = 128
    per_minute: int = 15
    bill: Bill = field(default_factory=Bill)
    _machines: dict[tuple[bytes, int], dict[bytes, float]] = field(default_factory=dict)
    _recent: dict[tuple[bytes, int], list[float]] = field(default_factory=dict)

    def send(self, body: Mapping[str, Any], now: float) -> None:
        """Bill one request."""
        text = "".join([piece for piece, _ in _pieces(body)])
        start = text[: 256 * _CHARACTERS_PER_TOKEN] + str(body.get("prompt_cache_key"))
        cache = self._machine(hashlib.sha256(start.encode()).digest(), now)
        tokens = len(text) // _CHARACTERS_PER_TOKEN
        read, digest = 0, hashlib.sha256()
        size = self.step * _CHARACTERS_PER_TOKEN
        for number in range(tokens // self.step):
            digest.update(text[number * size : (number + 1) * size].encode())
            end, key = (number + 1) * self.step, digest.digest()
            if end >= self.min_tokens:
                if cache.get(key, 0.0) > now:
                    read = end
                cache[key] = now + self.lifetime
        self.bill.read += read
        self.bill.plain += tokens - read

    def _machine(self, start: bytes, now: float) -> dict[bytes, float]:
        number = 0
        while True:
            recent = self._recent.setdefault((start, number), [])
            recent[:] = [at for at in recent if at > now - 60]
            if len(recent) < self.per_minute:
                recent.append(now)
                return self._machines.setdefault((start, number), {})
            number += 1


def blocks_of(body: Mapping[str, Any]) -> Iterator[SimulatedBlock]:
    """Yield the blocks of a body in the order of the prompt."""
    key, characters = b"", 0
    for text, mark in _pieces(body):
        key = hashlib.sha256(key + text.encode()).digest()
        characters += len(text)
        yield SimulatedBlock(key, characters // _CHARACTERS_PER_TOKEN, mark)


def _pieces(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str] | None]]:
    for tool in body.get("tools", ()):
        yield _piece("tool", tool)
    for block in _blocks(body.get("system")):
        yield _piece("system", block)
    for message in body["messages"]:
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        for block in _blocks(message.get("content")):
            yield _piece(message["role"], block)
        if rest:
            yield _piece(message["role"], rest)


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def _piece(role: str, block: Mapping[str, Any]) -> tuple[str, Mapping[str, str] | None]:
    mark = next((block[name] for name in MARKS if block.get(name)), None)
    kept = {name: value for name, value in block.items() if name not in MARKS}
    return role + json.dumps(kept), mark

"""Ask OpenAI-compatible servers for streamed answers, and note when their tokens came.

The one HTTP client of scripts and benchmarks. Does not know what is asked.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SOURCES = ("exact", "reused", "recomputed", "computed")
"""Sources of prompt tokens, as named in `usage`."""
STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}

Json = dict[str, Any]
Body = Mapping[str, Any]


@dataclass
class Answer:
    """A streamed answer; times are seconds, an event with text or an end counts as a token."""

    text: str = ""
    usage: Json = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    sent: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)  # since `sent`, of each token
    cpu_s: float = 0.0  # processor time of this process up to the first token
    is_complete: bool = False
    _cpu: float = field(default_factory=time.process_time)

    def feed(self, line: str) -> None:
        """Read a line of the stream."""
        data = line.removeprefix("data: ")
        self.is_complete = self.is_complete or data == "[DONE]"
        if not data.startswith("{"):
            return
        event = json.loads(data)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if piece or choice.get("finish_reason"):
                self.cpu_s = self.cpu_s or time.process_time() - self._cpu
                self.times.append(time.perf_counter() - self.sent)
            self.text += piece

    @property
    def ttft_s(self) -> float:
        return self.times[0]

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def sources(self) -> dict[str, int]:
        """Prompt tokens by source; they add up to `prompt_tokens`."""
        total, cached = self.prompt_tokens, self.cached_tokens
        reported = self.usage.get("ragboost")
        if reported is None:
            reported = {"exact": cached, "computed": total - cached}
        found = {name: int(reported.get(name, 0)) for name in SOURCES}
        assert sum(found.values()) == total, (found, total)
        return found


def ask(client: httpx.Client, path: str, body: Body) -> Answer:
    """Send a request and read its whole answer.

    Raises:
        httpx.HTTPError: among others, the status is not 200, or there is no token.
    """
    answer = Answer()
    with client.stream("POST", path, json={**STREAMED, **body}) as response:
        if response.status_code != 200:
            raise _failure(response, response.read())
        for line in response.iter_lines():
            answer.feed(line)
        return _checked(answer, response)


async def ask_async(
    client: httpx.AsyncClient, path: str, body: Body, *, headers: Mapping[str, str] | None = None
) -> Answer:
    """Do the same in an event loop."""
    answer = Answer()
    async with client.stream("POST", path, json={**STREAMED, **body}, headers=headers) as response:
        if response.status_code != 200:
            raise _failure(response, await response.aread())
        async for line in response.aiter_lines():
            answer.feed(line)
        return _checked(answer, response)


def _checked(answer: Answer, response: httpx.Response) -> Answer:
    answer.headers = response.headers
    if not (answer.times and answer.usage):
        raise httpx.RemoteProtocolError("a stream without tokens or usage")
    return answer


def _failure(response: httpx.Response, body: bytes) -> httpx.HTTPStatusError:
    text = f"{response.status_code}: {body[:500]!r}"
    return httpx.HTTPStatusError(text, request=response.request, response=response)

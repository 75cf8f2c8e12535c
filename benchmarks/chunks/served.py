"""Serve the embedded engine behind a proxy, and time streamed responses.

Knows request bodies. Does not know workloads.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from ragboost.config import BackendSettings, EngineSettings, Settings
from ragboost.engine import create_engine_app
from ragboost.engine.runtime.engine import Engine
from ragboost.proxy.app import create_app
from ragboost.serving import serve_in_thread

SOURCES = ("exact_cached", "approx_cached", "recomputed", "computed")
"""Sources of prompt tokens, as named in `usage`."""
Body = Mapping[str, Any]


class Answer(NamedTuple):
    """Response to one request.

    Times are in milliseconds; `cpu_ms` is the processor time of client, proxy and engine up to the
    first token.
    """

    text: str
    ttft_ms: float
    cpu_ms: float
    gaps_ms: list[float]
    usage: dict[str, Any]

    @property
    def sources(self) -> dict[str, int]:
        """Prompt tokens by source; they add up to `prompt_tokens`."""
        total, cached = (
            self.usage["prompt_tokens"],
            self.usage["prompt_tokens_details"]["cached_tokens"],
        )
        reported = self.usage.get("ragboost")
        if reported is None:
            reported = {"exact_cached_tokens": cached, "computed_tokens": total - cached}
        found = {name: int(reported.get(f"{name}_tokens", 0)) for name in SOURCES}
        assert sum(found.values()) == total, (found, total)
        return found


class Served(NamedTuple):
    """An embedded engine with a proxy in front of it."""

    engine: Engine
    engine_url: str
    url: str
    client: httpx.Client

    def ask(self, body: Body, *, path: str = "/v1/chat/completions") -> Answer:
        """Send a streaming request and read its whole response."""
        last, cpu = time.perf_counter(), time.process_time()
        cpu_ms = 0.0
        text, times, usage = "", [], {}
        with self.client.stream("POST", self.url + path, json={**body, **STREAMED}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    now = time.perf_counter()
                    cpu_ms = cpu_ms or (time.process_time() - cpu) * 1000
                    times.append((now - last) * 1000)
                    last = now
                    text += choice.get("delta", choice).get("content") or choice.get("text") or ""
            return Answer(text, times[0], cpu_ms, times[1:], usage)


STREAMED = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}


@contextmanager
def serve(engine: EngineSettings, proxy: Settings | None = None) -> Iterator[Served]:
    """Start an engine and a proxy, and wait until the proxy has detected chunk reuse."""
    proxy = proxy or Settings()
    app = create_engine_app(engine)
    with (
        serve_in_thread(app) as engine_url,
        httpx.Client(timeout=600) as client,
    ):
        backend = BackendSettings(url=engine_url)
        proxy_app = create_app(proxy.model_copy(update={"backend": backend}))
        with serve_in_thread(proxy_app) as url:
            while not proxy_app.state.chunk_reuse.is_supported:
                time.sleep(0.01)
            yield Served(app.state.engine, engine_url, url, client)

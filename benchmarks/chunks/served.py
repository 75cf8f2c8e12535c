"""Serve the embedded engine behind a proxy, with a random model and questions to ask it.

The questions are about Python's own documentation. Does not know what is measured.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragboost.booster.booster import Booster
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import (
    BackendSettings,
    DedupSettings,
    EngineSettings,
    HintSettings,
    OrderingSettings,
    Settings,
)
from ragboost.demo.corpus import standard_library
from ragboost.demo.workload import WorkloadTurn
from ragboost.engine import create_engine_app
from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.runtime.engine import Engine
from ragboost.proxy.app import create_app
from ragboost.serving import serve_in_thread
from scripts.http_client import CHAT, Answer, Body, ask

ANSWER_TOKENS = 8
UNHINTED = HintSettings(order=False, location=False)
AS_SENT = Settings(
    ordering=OrderingSettings(enabled=False), dedup=DedupSettings(enabled=False), hints=UNHINTED
)


class Served(NamedTuple):
    """An embedded engine with a proxy in front of it."""

    engine: Engine
    url: str
    client: httpx.Client

    def ask(self, body: Body) -> Answer:
        return ask(self.client, self.url + CHAT, body)


@contextmanager
def serve(engine: EngineSettings, proxy: Settings | None = None) -> Iterator[Served]:
    """Start an engine and a proxy, and wait until the proxy has detected chunk reuse."""
    app = create_engine_app(engine)
    with serve_in_thread(app) as engine_url, httpx.Client(timeout=600) as client:
        backend = BackendSettings(url=engine_url)
        proxy_app = create_app((proxy or Settings()).model_copy(update={"backend": backend}))
        with serve_in_thread(proxy_app) as url:
            while not proxy_app.state.chunk_reuse.is_supported:
                time.sleep(0.01)
            yield Served(app.state.engine, url, client)


def build_model(path: Path, *, layers: int) -> None:
    """Write a random model with the built-in tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        vocab_size=4096,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)


def draw(num_requests: int, *, k: int, corpus: int, seed: int) -> list[WorkloadTurn]:
    """Draw questions, each with documents in random order; a document's popularity is its rank to
    the power of -0.8."""
    documents = sorted(standard_library(), key=lambda document: -len(document.text))[:corpus]
    rng = np.random.default_rng(seed)
    weights = np.arange(1, corpus + 1) ** -0.8
    turns = []
    for _ in range(num_requests):
        chosen = rng.choice(corpus, size=k, replace=False, p=weights / weights.sum())
        found = tuple(documents[number] for number in chosen)
        turns.append(
            WorkloadTurn(f"How does {found[0].title} work, and what does it return?", found)
        )
    return turns


def request_body(turn: WorkloadTurn, mode: str, ratio: float) -> dict[str, Any]:
    """Return a chat completion request for a turn: `plain`, `exact` or `approx`."""
    system = {"role": "system", "content": "Answer from the documentation, briefly."}
    body: dict[str, Any] = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    if mode == "plain":
        plain = Settings(ordering=OrderingSettings(enabled=False), hints=UNHINTED)
        content = Booster(plain).boost(turn.question, turn.documents).render()
        return {**body, "messages": [system, {"role": "user", "content": content}]}
    documents = [{"id": d.id, "title": d.title, "text": d.text} for d in turn.documents]
    ours: dict[str, Any] = {"documents": documents}
    if mode == "approx":
        ours["reuse"] = {"policy": DEFAULT_POLICY, "ratio": ratio}
    question = {"role": "user", "content": turn.question}
    return {**body, "messages": [system, question], "ragboost": ours}

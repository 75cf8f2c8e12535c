"""Engine server with the tiny built-in model, shared by the tests of this folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import torch
from starlette.applications import Starlette

from ragboost.config import EngineSettings
from ragboost.engine import create_engine_app
from ragboost.engine.runtime.engine import Engine
from ragboost.proxy.serving import serve_in_thread
from tests.chunk_cache.conftest import loads_take_no_time

__all__ = ["loads_take_no_time"]  # pytest finds the fixture by its name here

torch.set_num_threads(1)

SETTINGS = EngineSettings(
    model=Path("ragboost-tiny"),
    capacity_tokens=4096,
    max_step_tokens=128,
    max_model_len=2048,
    kv_events_endpoint="tcp://127.0.0.1:*",
)
MODEL = "ragboost-tiny"


@dataclass(frozen=True)
class Served:
    """A running engine server."""

    url: str
    app: Starlette
    client: openai.OpenAI

    @property
    def engine(self) -> Engine:
        engine: Engine = self.app.state.engine
        return engine


@contextmanager
def serve_engine() -> Iterator[Served]:
    app = create_engine_app(SETTINGS)
    with (
        serve_in_thread(app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield Served(url, app, client)


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    with serve_engine() as server:
        yield server


@pytest.fixture
def fresh(served: Served) -> Served:
    """The shared server with an empty prefix cache."""
    served.engine.reset_prefix_cache().result()
    return served

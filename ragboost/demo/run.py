"""Run the demo: corpus, retrieval, embedded engine and proxy on loopback, two replays.

Knows the order of the steps. Does not know how any of them works.
"""

import asyncio
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragboost.config import (
    BackendSettings,
    EngineSettings,
    FormatSettings,
    IndexSettings,
    Settings,
)
from ragboost.demo.corpus import standard_library
from ragboost.demo.replay import MODEL, Costs, replay
from ragboost.demo.report import summarize
from ragboost.demo.workload import Workload, make_workload
from ragboost.errors import BackendStatusError
from ragboost.retrieval import BM25Retriever
from ragboost.serving import serve_in_thread


def run_demo(
    *,
    sessions: int = 80,
    conversations: int = 10,
    turns: int = 4,
    k: int = 6,
    capacity_tokens: int = 65_536,
    seed: int = 1,
    engine: EngineSettings | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Replay a workload through proxy and engine, plain and boosted, each on an empty cache.

    Args:
        sessions, conversations, turns, k, seed: see `make_workload`.
        capacity_tokens: size of the engine's prefix cache.
        engine: other settings of the engine; None: the built-in model.
        console: where progress is shown; None: on stderr.

    Returns:
        See `summarize`; with `workload`, the arguments that were used.

    Raises:
        RagBoostError: a step failed; the message says which and why.
    """
    from ragboost.engine import (
        create_engine_app,
        with_events,
    )  # torch is loaded here, not with the command line

    console = console or Console(stderr=True)
    documents = standard_library()
    console.print(f"corpus: {len(documents):,} documentation strings of Python's standard library")
    workload = make_workload(
        documents,
        BM25Retriever(documents),
        sessions=sessions,
        conversations=conversations,
        turns=turns,
        k=k,
        seed=seed,
    )
    console.print(
        f"workload: {sessions} sessions, {conversations} conversations of {turns} turns, "
        f"{k} documents each, found by BM25"
    )
    settings = (engine or EngineSettings()).model_copy(
        update={"capacity_tokens": capacity_tokens, "served_model_name": MODEL}
    )
    with serve_in_thread(create_engine_app(with_events(settings))) as url:
        console.print(f"engine: {url}, prefix cache of {capacity_tokens:,} tokens")
        plain = _replay(workload, url, capacity_tokens, boosted=False, console=console)
        boosted = _replay(workload, url, capacity_tokens, boosted=True, console=console)
    drawn = {"sessions": sessions, "conversations": conversations, "turns": turns, "k": k}
    return {
        "workload": {**drawn, "capacity_tokens": capacity_tokens, "seed": seed},
        **summarize(plain, boosted),
    }


def _replay(
    workload: Workload, engine: str, capacity_tokens: int, *, boosted: bool, console: Console
) -> Costs:
    """Replay through a new proxy on an empty prefix cache, with a progress bar."""
    from ragboost.proxy.app import create_app

    settings = Settings(
        backend=BackendSettings(url=engine),
        index=IndexSettings(capacity_tokens=capacity_tokens),
        formats=FormatSettings(in_text=boosted),  # plain: pass on what the client has written
    )
    total = len(workload.sessions) + sum(map(len, workload.conversations))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        serve_in_thread(create_app(settings)) as proxy,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        task = progress.add_task("boosted" if boosted else "plain  ", total=total)

        async def run() -> Costs:
            await _empty_cache(engine)
            return await replay(
                workload, proxy, boosted=boosted, on_request=lambda: progress.advance(task)
            )

        return asyncio.run(run())


async def _empty_cache(engine: str) -> None:
    async with (
        aiohttp.ClientSession(engine) as client,
        client.post("/reset_prefix_cache") as response,
    ):
        if response.status != 200:
            raise BackendStatusError(f"the engine answered {response.status} to the cache reset")

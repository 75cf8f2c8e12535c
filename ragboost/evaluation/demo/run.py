"""Run the demo: corpus, retrieval, embedded engines and proxies on loopback, two replays."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragboost.config import BackendSettings, EngineSettings, FormatSettings, IndexSettings, Settings
from ragboost.evaluation.demo.comparison import summarize
from ragboost.evaluation.demo.corpus import standard_library
from ragboost.evaluation.demo.replay import MODEL, WorkloadAnswers, replay
from ragboost.evaluation.demo.workload import Workload, make_workload
from ragboost.evaluation.streamed_answer import StreamedAnswer
from ragboost.proxy.serving import serve_in_thread
from ragboost.retrieval import BM25Retriever

_ANSWER_TOKENS = 8


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
    """Replay a workload through proxy and engine, plain and boosted, each with its own; requests
    alternate, so that other load slows both alike. Return `summarize`'s result."""
    console = console or Console(stderr=True)
    documents = standard_library()
    console.print(f"corpus: {len(documents):,} documentation strings of Python's standard library")
    drawn = {"sessions": sessions, "conversations": conversations, "turns": turns, "k": k}
    workload = make_workload(documents, BM25Retriever(documents), **drawn, seed=seed)
    console.print(
        f"workload: {sessions} sessions, {conversations} conversations of {turns} turns, "
        f"{k} documents each, found by BM25"
    )
    settings = (engine or EngineSettings()).model_copy(
        update={"capacity_tokens": capacity_tokens, "served_model_name": MODEL}
    )
    with (
        serve_demo(settings, boosted=False) as plain_url,
        serve_demo(settings, boosted=True) as url,
    ):
        console.print(f"two engines, each with a prefix cache of {capacity_tokens:,} tokens")
        plain, boosted = asyncio.run(
            replay_both(workload, plain_url, url, max_tokens=_ANSWER_TOKENS, console=console)
        )
    return {
        "workload": {**drawn, "capacity_tokens": capacity_tokens, "seed": seed},
        **summarize(plain, boosted),
    }


@contextmanager
def serve_demo(engine: EngineSettings, *, boosted: bool) -> Iterator[str]:
    # Loads torch, which the command line must not.
    from ragboost.engine import create_engine_app, with_events
    from ragboost.proxy.app import create_app

    app = create_engine_app(with_events(engine), reuses_chunks=False)
    with serve_in_thread(app) as url:
        settings = Settings(
            backend=BackendSettings(url=url),
            index=IndexSettings(capacity_tokens=engine.capacity_tokens),
            formats=FormatSettings(in_text=boosted),  # plain: forward the prompt unchanged
        )
        with serve_in_thread(create_app(settings)) as proxy:
            yield proxy


async def replay_both(
    workload: Workload, plain: str, boosted: str, *, max_tokens: int, console: Console
) -> tuple[WorkloadAnswers, WorkloadAnswers]:
    columns = (TextColumn("plain and boosted"), BarColumn(), MofNCompleteColumn())
    total = len(workload.sessions) + sum(map(len, workload.conversations))
    answers: list[list[StreamedAnswer]] = [[], []]
    async with (
        aclosing(replay(workload, plain, boosted=False, max_tokens=max_tokens)) as plain_answers,
        aclosing(replay(workload, boosted, boosted=True, max_tokens=max_tokens)) as boosted_answers,
    ):
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            for _ in progress.track(range(total)):
                answers[0].append(await anext(plain_answers))
                answers[1].append(await anext(boosted_answers))
    first = len(workload.sessions)
    return WorkloadAnswers(answers[0][:first], answers[0][first:]), WorkloadAnswers(
        answers[1][:first], answers[1][first:]
    )

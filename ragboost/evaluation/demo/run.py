"""Run the demo: corpus, retrieval, embedded engines and proxies on loopback, two replays."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragboost.config import BackendSettings, EngineSettings, FormatSettings, IndexSettings, Settings
from ragboost.evaluation.demo.comparison import summarize
from ragboost.evaluation.demo.replay import MODEL, WorkloadAnswers, replay, simulate_replay
from ragboost.evaluation.demo.workload import Workload, make_workload, standard_library
from ragboost.evaluation.endpoint import StreamedAnswer
from ragboost.proxy.serving import serve_in_thread

_ANSWER_TOKENS = 8


def run_demo(
    *,
    sessions: int = 80,
    conversations: int = 10,
    turns: int = 4,
    k: int = 8,
    capacity_tokens: int = 65_536,
    engine: EngineSettings | None = None,
    is_simulated: bool = False,
    console: Console,
) -> tuple[Workload, dict[str, Any]]:
    """Replay a workload through proxy and engine, plain and boosted, each with its own; requests
    alternate, so that other load slows both alike. Return it, and `summarize`'s result."""
    documents = standard_library()
    console.print(f"corpus: {len(documents):,} documentation strings of Python's standard library")
    drawn = {"sessions": sessions, "conversations": conversations, "turns": turns, "k": k}
    workload = make_workload(documents, **drawn, seed=1)
    console.print(
        f"workload: {sessions} sessions, {conversations} conversations of {turns} turns, "
        f"{k} documents each, found by BM25"
    )
    if is_simulated:
        console.print(f"two simulated prefix caches of {capacity_tokens:,} tokens: no engine")
        simulated = partial(simulate_replay, workload, capacity_tokens=capacity_tokens)
        replays = simulated(boosted=False), simulated(boosted=True)
        plain, boosted = asyncio.run(replay_both(workload, *replays, console=console))
    else:
        settings = (engine or EngineSettings()).model_copy(
            update={"capacity_tokens": capacity_tokens, "served_model_name": MODEL}
        )
        plain, boosted = ask_both(workload, settings, max_tokens=_ANSWER_TOKENS, console=console)
    figures = {"workload": {**drawn, "capacity_tokens": capacity_tokens}}
    return workload, {**figures, **summarize(plain, boosted), "is_simulated": is_simulated}


def ask_both(
    workload: Workload, engine: EngineSettings, *, max_tokens: int, console: Console
) -> tuple[WorkloadAnswers, WorkloadAnswers]:
    """Replay a workload on two engines, one of them behind a proxy that boosts."""
    console.print("loading PyTorch and two engines on loopback (the first time, a minute) ...")
    with (
        console.status("loading") as loading,
        serve_demo(engine, boosted=False) as plain,
        serve_demo(engine, boosted=True) as url,
    ):
        loading.stop()
        console.print(f"two engines, each with a prefix cache of {engine.capacity_tokens:,} tokens")
        ask = partial(replay, workload, max_tokens=max_tokens)
        replays = ask(plain, boosted=False), ask(url, boosted=True)
        return asyncio.run(replay_both(workload, *replays, console=console))


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
    workload: Workload,
    plain: AsyncGenerator[StreamedAnswer],
    boosted: AsyncGenerator[StreamedAnswer],
    *,
    console: Console,
) -> tuple[WorkloadAnswers, WorkloadAnswers]:
    """Ask one after the other, with a bar that shows what was saved so far."""
    saved_so_far = TextColumn("{task.fields[saved]}")
    columns = (TextColumn("plain and boosted"), BarColumn(), MofNCompleteColumn(), saved_so_far)
    total = len(workload.sessions) + sum(map(len, workload.conversations))
    answers: list[list[StreamedAnswer]] = [[], []]
    saved = computed = 0
    async with aclosing(plain), aclosing(boosted):
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            task = progress.add_task("", total=total, saved="")
            for _ in range(total):
                answers[0].append(await anext(plain))
                answers[1].append(await anext(boosted))
                before, after = (_prefill_tokens(each[-1]) for each in answers)
                saved, computed = saved + before - after, computed + before
                said = f"{saved / max(1, computed):.0%} fewer tokens computed"
                progress.update(task, advance=1, saved=said)
    first = len(workload.sessions)
    plain_answers, boosted_answers = (
        WorkloadAnswers(each[:first], each[first:]) for each in answers
    )
    return plain_answers, boosted_answers


def _prefill_tokens(answer: StreamedAnswer) -> int:
    return answer.usage.prompt_tokens - (answer.usage.cached_tokens or 0)

"""Send requests to a server at given times, and write when their first tokens arrived.

    python -m benchmarks.scale.driver PLAN.jsonl OUT.jsonl --url http://127.0.0.1:8080

A process of its own, so that it takes nothing from the server that it measures. Each line of the
plan is `{"gap_s": seconds after the request before it, "body": of a completion}`. With `--clients`
the gaps do not count: so many clients send a request each and wait for its end (closed loop).
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from scripts.http_client import COMPLETIONS, Body, Json, ask_async

TIMEOUT_S = 900.0


async def send(client: httpx.AsyncClient, body: Body, started: float) -> Json:
    """Send one streaming request; times are seconds since `started`."""
    try:
        answer = await ask_async(client, COMPLETIONS, body)
    except httpx.HTTPError as error:
        return {"error": repr(error)}
    arrived = answer.sent - started
    return {
        "arrived": arrived,
        "first_token": arrived + answer.ttft_s,
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "error": None,
    }


async def drive(url: str, plan: list[Json], *, clients: int) -> list[Json]:
    """Send all requests; the responses are in the order of the plan."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        started = time.perf_counter()
        if clients:
            results: list[Json] = [{}] * len(plan)
            left = iter(enumerate(plan))
            await asyncio.gather(*(_client(client, left, results, started) for _ in range(clients)))
            return results
        tasks, due = [], 0.0
        for line in plan:
            due += line["gap_s"]
            await asyncio.sleep(max(0.0, started + due - time.perf_counter()))
            tasks.append(asyncio.create_task(send(client, line["body"], started)))
        return await asyncio.gather(*tasks)


async def _client(
    client: httpx.AsyncClient,
    left: Iterator[tuple[int, Json]],
    results: list[Json],
    started: float,
) -> None:
    for place, line in left:
        results[place] = await send(client, line["body"], started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, default=0)
    options = parser.parse_args()
    plan = [json.loads(line) for line in options.plan.read_text().splitlines()]
    results = asyncio.run(drive(options.url, plan, clients=options.clients))
    options.out.write_text("".join(json.dumps(result) + "\n" for result in results))


if __name__ == "__main__":
    main()

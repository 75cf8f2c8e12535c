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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

TIMEOUT_S = 900.0


async def send(
    client: httpx.AsyncClient, body: Mapping[str, Any], started: float
) -> dict[str, Any]:
    """Send one streaming request; times are seconds since `started`."""
    arrived = time.perf_counter() - started
    usage: dict[str, Any] = {}
    first, error = 0.0, None
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                error = f"{response.status_code}: {(await response.aread())[:200]!r}"
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                choice = (event.get("choices") or [{}])[0]
                if not first and (choice.get("text") or choice.get("finish_reason")):
                    first = time.perf_counter() - started
                usage = event.get("usage") or usage
    except httpx.HTTPError as failed:
        error = repr(failed)
    details = usage.get("prompt_tokens_details") or {}
    return {
        "arrived": arrived,
        "first_token": first,
        "prompt_tokens": usage.get("prompt_tokens", 0),
        "cached_tokens": details.get("cached_tokens") or 0,
        "error": error if error or first else "no token",
    }


async def drive(url: str, plan: list[dict[str, Any]], *, clients: int) -> list[dict[str, Any]]:
    """Send all requests; the responses are in the order of the plan."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        started = time.perf_counter()
        if clients:
            results: list[dict[str, Any]] = [{}] * len(plan)
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
    left: Iterator[tuple[int, dict[str, Any]]],
    results: list[dict[str, Any]],
    started: float,
) -> None:
    for number, line in left:
        results[number] = await send(client, line["body"], started)


def main() -> None:
    """Send the plan and write the responses."""
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

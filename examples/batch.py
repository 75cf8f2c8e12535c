"""Offline batch: run a file of requests through the engine in its own order and as planned.

Run: ragboost engine &
     python examples/batch.py   (needs: pip install openai)
"""

import json
import sys
import tempfile
from pathlib import Path

from openai import APIConnectionError, OpenAI

from ragboost import Settings
from ragboost.batch import run_batch
from ragboost.config import OrderingSettings

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
REQUESTS = Path(__file__).parent / "requests.jsonl"


def main() -> None:
    """Run six requests over four documents twice, and show the cached tokens."""
    unordered = Settings(ordering=OrderingSettings(enabled=False))
    with tempfile.TemporaryDirectory() as folder:
        for name, settings in (("as given", unordered), ("planned", Settings())):
            path = Path(folder, "ordered.jsonl")
            run_batch(REQUESTS, path, settings=settings)
            lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            cached, total = send(lines, salt=name)
            order = " ".join(line["custom_id"] for line in lines)
            print(f"{name}: {order}, {cached} of {total} prompt tokens cached")


def send(lines: list[dict], *, salt: str) -> tuple[int, int]:
    """Send the requests one after another; return cached and total prompt tokens.

    `salt` separates the runs in the engine's prefix cache.
    """
    cached = total = 0
    with OpenAI(base_url=BASE_URL, api_key="unused") as client:
        for line in lines:
            usage = client.chat.completions.create(
                **line["body"], extra_body={"cache_salt": salt}
            ).usage
            cached += usage.prompt_tokens_details.cached_tokens
            total += usage.prompt_tokens
    return cached, total


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        sys.exit(f"No server at {BASE_URL}: start `ragboost engine`, or give a base URL")

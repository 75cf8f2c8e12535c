"""Ray Data job: plan all rows together, and send rows with a shared prefix one after another.

Run: ragboost serve --embedded &
     python examples/ray_batch.py   (needs: the extra ray, openai)
"""

import sys

import ray
from openai import OpenAI

from ragboost.integrations.ray import boosted

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
TEXTS = {name: f"Document {name} has a sentence that says {name}. " * 20 for name in "abcd"}
LISTS = ("abc", "dcb", "bac", "cdb", "cab", "bdc")


class Ask:
    """Actor that sends rows to the server; for a model inside Ray, use ray.data.llm."""

    def __init__(self) -> None:
        self.client = OpenAI(base_url=BASE_URL, api_key="unused")

    def __call__(self, row: dict) -> dict:
        """Complete one row and add its cached share."""
        completion = self.client.chat.completions.create(
            model="ragboost-small", messages=list(row["messages"]), max_tokens=4
        )
        usage = completion.usage
        row["cached"] = usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens
        return row


def main() -> None:
    """Run six questions over four documents, and show the cached share of each prompt."""
    ray.init(log_to_driver=False)  # starts a local Ray, or joins the cluster at RAY_ADDRESS
    rows = [
        {"question": f"Question {number}?", "documents": [TEXTS[name] for name in names]}
        for number, names in enumerate(LISTS)
    ]
    planned = boosted(ray.data.from_items(rows))
    for row in planned.map(Ask, concurrency=1).take_all():
        print(f"row {row['request_index']}: {row['cached']:.0%} of the prompt cached")
    ray.shutdown()


if __name__ == "__main__":
    main()

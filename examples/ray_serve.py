"""The proxy as a Ray Serve deployment on one machine.

Run: ragboost engine &
     python examples/ray_serve.py   (needs: the extra ray, openai)
"""

import sys

import ray
from openai import OpenAI
from ray import serve

from ragboost.config import BackendSettings, Settings
from ragboost.integrations.ray import deploy

BACKEND = sys.argv[1].removesuffix("/v1") if len(sys.argv) > 1 else "http://127.0.0.1:8000"
PORT = 8123
DOCUMENTS = [
    {"id": "lease", "text": "The lease was signed by Maria Lopez on 3 May 2024. " * 20},
    {"id": "rent", "text": "The monthly rent is 2,400 euros and rises with the index. " * 20},
]


def main() -> None:
    """Deploy the proxy, and ask two questions with the same documents in different orders."""
    ray.init(log_to_driver=False)  # starts a local Ray, or joins the cluster at RAY_ADDRESS
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(deploy(Settings(backend=BackendSettings(url=BACKEND))), name="ragboost")
    client = OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="unused")
    for question, documents in (
        ("Who signed the lease?", DOCUMENTS),
        ("What is the rent?", DOCUMENTS[::-1]),
    ):
        answer = client.chat.completions.create(
            model="ragboost-small",
            messages=[{"role": "user", "content": question}],
            max_tokens=4,
            extra_body={"ragboost": {"documents": documents}},
        )
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens
        print(f"{question} {usage.prompt_tokens} prompt tokens, {cached} cached")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()

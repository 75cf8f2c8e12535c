"""The official OpenAI client through the proxy: only `base_url` changes.

Starts the proxy and the embedded engine on loopback; with your own backend, start
`ragboost serve --backend URL` and point `base_url` at it.

Run: python examples/openai_client.py   (needs: the extra engine, openai)
"""

from pathlib import Path

from openai import OpenAI

import ragboost
from ragboost.config import BackendSettings, EngineSettings
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread

DOCUMENTS = [
    {"id": "lease", "text": "The lease was signed by Maria Lopez on 3 May 2024. " * 20},
    {"id": "rent", "text": "The monthly rent is 2,400 euros and rises with the index. " * 20},
]


def main() -> None:
    """Ask two questions with the same documents in different orders; show the cached tokens."""
    engine = create_engine_app(
        EngineSettings(model=Path("ragboost-tiny"), served_model_name="demo")
    )
    with serve_in_thread(engine) as backend:
        settings = ragboost.Settings(backend=BackendSettings(url=backend))
        with serve_in_thread(ragboost.create_app(settings)) as proxy:
            client = OpenAI(base_url=f"{proxy}/v1", api_key="unused")
            for question, documents in (
                ("Who signed the lease?", DOCUMENTS),
                ("What is the rent?", DOCUMENTS[::-1]),
            ):
                answer = client.chat.completions.create(
                    model="demo",
                    messages=[{"role": "user", "content": question}],
                    max_tokens=4,
                    extra_body={"ragboost": {"documents": documents}},
                )
                usage = answer.usage
                assert usage is not None
                assert usage.prompt_tokens_details is not None
                cached = usage.prompt_tokens_details.cached_tokens
                print(f"{question} {usage.prompt_tokens} prompt tokens, {cached} cached")


if __name__ == "__main__":
    main()

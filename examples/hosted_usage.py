"""Hosted API: boost in the application, and report the provider's cached tokens to the Booster.

Providers with a prefix cache publish no cache events, but the `usage` of each response counts the
cached tokens. `Booster.report_usage` corrects the Booster's cache model with them.

Run: OPENAI_API_KEY=... python examples/hosted_usage.py https://api.openai.com/v1 MODEL
     (needs: pip install openai; without arguments it uses `ragboost serve --embedded`)
"""

import os
import sys

from openai import APIConnectionError, OpenAI

import ragboost

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
MODEL = sys.argv[2] if len(sys.argv) > 2 else "ragboost-small"
TEXTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024 for a term of five years. ",
    "rent": "The monthly rent is 2,400 euros and rises with the consumer price index. ",
    "pets": "Pets need the landlord's written consent; guide dogs do not. ",
    "parking": "The flat comes with one parking space in the courtyard. ",
}


def main() -> None:
    """Ask three questions, and compare predicted with reported cached tokens."""
    client = OpenAI(base_url=BASE_URL, api_key=os.environ.get("OPENAI_API_KEY", "unused"))
    booster = ragboost.Booster()  # one per provider and model
    for question, names in (
        ("Who signed the lease?", ("lease", "rent", "pets")),
        ("What is the rent?", ("rent", "parking", "lease")),
        ("May I keep a cat?", ("pets", "rent", "lease")),
    ):
        documents = [ragboost.Document(TEXTS[name] * 30, id=name) for name in names]
        context = booster.boost(question, documents)
        answer = client.chat.completions.create(
            model=MODEL, messages=context.messages(), max_completion_tokens=16
        )
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens
        booster.report_usage(context, prompt_tokens=usage.prompt_tokens, cached_tokens=cached)
        print(f"{question} expected {context.predicted_cached_tokens} cached, got {cached}")
    print(booster.usage)
    client.close()


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        sys.exit(f"No server at {BASE_URL}: start `ragboost serve --embedded`, or give a base URL")

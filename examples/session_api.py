"""Chat-session API: the client sends new turns only, the proxy keeps the history.

Run: ragboost serve --embedded &
     python examples/session_api.py   (needs: pip install openai)
"""

import sys

from openai import APIConnectionError, OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
TEXTS = {
    "hours": "The library opens at nine and closes at eight. ",
    "cards": "Cards are free for residents and cost ten euros for visitors. ",
    "loans": "Books are lent for four weeks and can be renewed twice. ",
    "rooms": "The reading room has forty seats and free wireless network. ",
}


def main() -> None:
    """Ask two questions; two documents of the second were sent with the first."""
    client = OpenAI(base_url=BASE_URL, api_key="unused")
    created = client.post("/sessions", body={"system": "Be brief."}, cast_to=object)
    session = client.with_options(base_url=f"{BASE_URL}/sessions/{created['id']}")
    for question, names in (
        ("When does it open?", ("hours", "cards", "loans")),
        ("Can I work there?", ("hours", "rooms", "cards")),
    ):
        answer = session.chat.completions.with_raw_response.create(
            model="ragboost-small",
            messages=[{"role": "user", "content": question}],
            max_tokens=8,
            extra_body={"documents": [{"id": name, "text": TEXTS[name] * 10} for name in names]},
        )
        sent = answer.headers["x-ragboost-documents"]
        details = answer.parse().usage.prompt_tokens_details
        print(f"{question} {len(names)} retrieved, {sent} sent, {details.cached_tokens} cached")
    client.close()


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        sys.exit(f"No server at {BASE_URL}: start `ragboost serve --embedded`, or give a base URL")

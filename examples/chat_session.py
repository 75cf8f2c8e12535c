"""Conversation with the library: documents sent in an earlier turn are not repeated.

The session returns the messages that each turn adds; the prompt is the whole conversation, as chat
clients send it.

Run: ragboost engine &
     python examples/chat_session.py   (needs: pip install openai)
"""

import sys

from openai import APIConnectionError, OpenAI

import ragboost

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
TEXTS = {
    "hours": "The library opens at nine and closes at eight. ",
    "cards": "Cards are free for residents and cost ten euros for visitors. ",
    "loans": "Books are lent for four weeks and can be renewed twice. ",
    "rooms": "The reading room has forty seats and free wireless network. ",
}


def main() -> None:
    """Ask two questions; two documents of the second were sent with the first."""
    session = ragboost.Booster().session("visitor-7")
    messages = []
    with OpenAI(base_url=BASE_URL, api_key="unused") as client:
        for question, names in (
            ("When does it open?", ("hours", "cards", "loans")),
            ("Can I work there?", ("hours", "rooms", "cards")),
        ):
            documents = [ragboost.Document(TEXTS[name] * 10, id=name) for name in names]
            context = session.boost(question, documents)
            messages += context.messages()
            answer = client.chat.completions.create(
                model="ragboost-small", messages=messages, max_tokens=8
            )
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            sent = [document.id for document in context.documents]
            cached = answer.usage.prompt_tokens_details.cached_tokens
            print(f"{question} sent {sent}, {cached} of {answer.usage.prompt_tokens} tokens cached")
            for hint in context.hints:
                print(f"  hint: {hint.text}")


if __name__ == "__main__":
    try:
        main()
    except APIConnectionError:
        sys.exit(f"No server at {BASE_URL}: start `ragboost engine`, or give a base URL")

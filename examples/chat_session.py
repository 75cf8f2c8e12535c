"""A conversation: documents of earlier turns are not sent again, a hint says where they stand.

Run: python examples/chat_session.py
"""

import ragboost

TEXTS = {
    "1": "The library opens at nine and closes at eight.",
    "2": "Cards are free for residents and cost ten euros for visitors.",
    "4": "Books are lent for four weeks and can be renewed twice.",
    "5": "The reading room has forty seats and free wireless network.",
}


def main() -> None:
    """Ask two questions; the second retrieves two documents that the first one sent."""
    session = ragboost.Booster().session("visitor-7")
    for question, ids in (("When does it open?", "124"), ("Can I work there?", "152")):
        documents = [ragboost.Document(TEXTS[name], id=name) for name in ids]
        context = session.boost(question, documents)
        sent = [document.id for document in context.documents]
        print(f"{question} retrieved {list(ids)}, sent {sent}")
        for hint in context.hints:
            print(f"  hint: {hint.text}")


if __name__ == "__main__":
    main()

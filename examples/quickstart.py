"""The library in ten lines: two requests over the same documents share a prefix.

Run: python examples/quickstart.py
"""

import ragboost

DOCUMENTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024 for a term of five years.",
    "rent": "The monthly rent is 2,400 euros and rises with the consumer price index.",
    "pets": "Pets need the landlord's written consent; guide dogs do not.",
    "parking": "The flat comes with one parking space in the courtyard.",
}


def retrieved(*ids: str) -> list[ragboost.Document]:
    """Return documents as a retriever does, most relevant first."""
    return [ragboost.Document(DOCUMENTS[name], id=name) for name in ids]


def main() -> None:
    """Boost two requests and show the prefix that they share."""
    booster = ragboost.Booster()
    first = booster.boost("Who signed the lease?", retrieved("lease", "rent", "pets"))
    second = booster.boost("What is the rent?", retrieved("rent", "parking", "lease"))
    print(first.render(), "\n---\n", second.render(), sep="")
    print(f"---\ncached prefix of the second request: {second.predicted_cached_tokens} tokens")


if __name__ == "__main__":
    main()

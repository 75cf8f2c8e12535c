"""The texts of documents in prompts, and which of them fit into one. Does not load torch."""

from collections.abc import Sequence

from ragboost.types import Document


def fill_template(template: str, document: Document) -> str:
    title = document.title or ""
    text = template.replace("{title}\n", f"{title}\n" if title else "")
    return text.replace("{title}", title).replace("{text}", document.text)


def fitting(near: Sequence[int], lengths: Sequence[int], *, room: int) -> list[int]:
    """Return the last documents of `near`, the closest, that fit into so many tokens, in order;
    empty ones are left out."""
    found: list[int] = []
    for number in reversed(near):
        room -= lengths[number]
        if room < 0:
            break
        if lengths[number]:
            found.append(number)
    return found[::-1]

"""Count in a thread of its own what requests have only estimated.

Knows a counter and an encoder of texts. Loads a tokenizer only where the settings name one.
"""

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ragboost.tokens.counter import TokenCounter

if TYPE_CHECKING:
    from ragboost.config import TokenSettings

_BATCH = 16
_LOOK_S = 1.0

Encode = Callable[[list[str]], list[list[int]]]


def make_counter(
    settings: "TokenSettings", count_tokens: Callable[[str], int] | None = None
) -> TokenCounter:
    """A counter whose estimates the tokenizer of the settings makes exact, where they name one.

    Raises:
        ConfigError: no such tokenizer.
    """
    counter = TokenCounter(count_tokens, max_documents=settings.max_documents)
    if settings.tokenizer is not None and count_tokens is None:
        from ragboost.tokens.local import load_tokenizer

        count_in_background(counter, load_tokenizer(settings.tokenizer).encode)
    return counter


def count_in_background(counter: TokenCounter, encode: Encode) -> threading.Thread:
    """Count what `counter` wants from now on, as long as somebody else holds it.

    Args:
        counter: whose documents; its estimates become exact lengths.
        encode: the token ids of each text.
    """
    counter.is_counted = True
    thread = threading.Thread(
        target=_run, args=(weakref.ref(counter), encode), name="ragboost-tokens", daemon=True
    )
    thread.start()
    return thread


def _run(held: "weakref.ref[TokenCounter]", encode: Encode) -> None:
    while (counter := held()) is not None:
        wanted = counter.take_wanted(_BATCH)
        for (key, _), ids in zip(wanted, encode([text for _, text in wanted]), strict=True):
            counter.learn(key, len(ids), ids=ids)
        has_wanted = counter.has_wanted
        del counter
        has_wanted.wait(_LOOK_S)

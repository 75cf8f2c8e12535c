"""What the hold-out says of the saving, and how sure it is."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ragboost.proxy.observability import hold_out
from ragboost.proxy.observability.hold_out import HoldOut, SavedShare
from ragboost.requests.wires.usage import Usage


async def measured(
    monkeypatch: pytest.MonkeyPatch, *, conversations: int, saved: float, seed: int
) -> SavedShare | None:
    """Return the estimate for conversations of one to six turns, of very different sizes."""
    monkeypatch.setattr(hold_out, "conversation_digest", lambda parsed: parsed.digest)
    draw, observer = random.Random(seed), HoldOut()
    for _ in range(conversations):
        arm = draw.choice(("held_out", "boosted"))
        parsed = SimpleNamespace(arm=arm, digest=draw.randbytes(32))
        size = draw.uniform(500, 5000)
        for _ in range(draw.randrange(1, 7)):
            computed = size * draw.uniform(0.8, 1.2) * (1 - saved if arm == "boosted" else 1)
            usage = Usage(10_000, 10_000 - round(computed))
            answer = SimpleNamespace(usage=usage, outcome="ok")
            await observer.done(cast(Any, parsed), *cast(Any, (None, answer)))
    return observer.saved_share()


async def test_the_interval_holds_the_truth_though_turns_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = [
        await measured(monkeypatch, conversations=400, saved=0.2, seed=seed) for seed in range(40)
    ]
    holding = [share.low <= 0.2 <= share.high for share in shares if share is not None]
    assert len(holding) == 40
    assert sum(holding) >= 35
    assert all(share.high - share.low < 0.5 for share in shares if share is not None)


async def test_few_conversations_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await measured(monkeypatch, conversations=10, saved=0.2, seed=0) is None

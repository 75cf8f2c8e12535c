"""How likely a prefix returns is learnt from its own uses and from those of its kind."""

from ragboost.proxy.hosted.prompt_blocks import BlockPlace, PromptBlock
from ragboost.proxy.hosted.reuse_table import ReuseTable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def block(name: str, kind: str = "end") -> PromptBlock:
    return PromptBlock(BlockPlace("messages", 0), name.encode(), 4000, kind, True)


def test_prefixes_that_return_are_expected_to_return() -> None:
    clock = Clock()
    table = ReuseTable([300.0, 3600.0], clock=clock)
    for _ in range(20):
        table.observe([block("system")])
        clock.now += 10

    forecast = table.forecast(block("system"), 0)

    assert forecast.uses > 5
    assert forecast.in_time > 0.99


def test_a_kind_that_never_returns_is_not_expected_to() -> None:
    clock = Clock()
    table = ReuseTable([300.0], clock=clock)
    for number in range(200):
        table.observe([block(f"question {number}", "end"), block("shared", "system")])
        clock.now += 1

    assert table.forecast(block("question 199"), 0).uses < 0.05
    assert table.forecast(block("shared"), 0).uses > 20


def test_uses_that_come_too_late_for_a_short_life_come_in_time_for_a_long_one() -> None:
    clock = Clock()
    table = ReuseTable([300.0, 3600.0], clock=clock)
    for _ in range(20):
        table.observe([block("system")])
        clock.now += 1000

    assert table.forecast(block("system"), 0).in_time < 0.2
    assert table.forecast(block("system"), 1).in_time == 1.0


def test_a_prefix_is_resident_until_its_time_is_over() -> None:
    clock = Clock()
    table = ReuseTable([300.0, 3600.0], clock=clock)
    table.observe([block("a")])
    assert table.resident_ttl(block("a")) is None
    table.keep(block("a"), 1)
    clock.now = 3599.0
    assert table.resident_ttl(block("a")) == 1
    clock.now = 3601.0
    assert table.resident_ttl(block("a")) is None


def test_memory_is_bounded() -> None:
    table = ReuseTable([300.0], max_prefixes=10)
    table.observe([block(str(number)) for number in range(100)])
    table.keep(block("0"), 0)
    assert table.resident_ttl(block("0")) is None
    assert len(table._prefixes) == 10

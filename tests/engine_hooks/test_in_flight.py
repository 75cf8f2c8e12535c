"""Between dispatch and event, what is on its way counts against what is cached."""

from ragboost.engine_hooks.in_flight import InFlight


def sent(flight: InFlight, name: str, prompt: int, cached: int = 0) -> None:
    flight.sent(name, prompt_tokens=prompt, cached_tokens=cached, block_size=16)


def test_whole_blocks_beyond_the_cached_ones_are_expected_until_events_confirm_them() -> None:
    flight = InFlight()
    sent(flight, "a", 100, cached=32)
    sent(flight, "b", 50)
    assert (len(flight), flight.num_tokens) == (2, 64 + 48)
    flight.stored("a", 64)  # a first chunk
    assert flight.num_tokens == 32 + 48
    flight.stored("a", 16)  # evicted again, but not to be stored again
    flight.stored("a", 96)
    assert (len(flight), flight.num_tokens) == (1, 48)
    flight.measured("b", 70)
    assert flight.num_tokens == 64
    flight.done("b")
    flight.done("b")
    flight.stored("unknown", 10)
    flight.measured("unknown", 10)
    assert (len(flight), flight.num_tokens) == (0, 0)


def test_an_id_that_is_sent_again_names_the_latest_request() -> None:
    flight = InFlight()
    sent(flight, "a", 160)
    sent(flight, "a", 32)
    assert (len(flight), flight.num_tokens) == (1, 32)


def test_what_fits_stays_and_what_does_not_is_shared_out() -> None:
    flight = InFlight()
    sent(flight, "a", 1600)
    assert flight.kept_share(resident_tokens=400, capacity_tokens=2000) == 1.0
    assert flight.kept_share(resident_tokens=2400, capacity_tokens=2000) == 0.5
    assert flight.kept_share(resident_tokens=10**9, capacity_tokens=None) == 1.0
    flight.clear()
    assert flight.kept_share(resident_tokens=2000, capacity_tokens=2000) == 1.0


def test_requests_are_bounded() -> None:
    flight = InFlight()
    for number in range(10_050):
        sent(flight, str(number), 16)
    assert (len(flight), flight.num_tokens) == (10_000, 160_000)

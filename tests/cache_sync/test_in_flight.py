"""Requests between dispatch and event count against the cache's capacity."""

from ragboost.cache_sync.in_flight import InFlight


def sent(flight: InFlight, name: str, prompt: int, cached: int = 0) -> None:
    flight.add(name, prompt_tokens=prompt, cached_tokens=cached, block_size=16)


def test_whole_blocks_beyond_the_cached_ones_are_expected_until_events_confirm_them() -> None:
    flight = InFlight()
    sent(flight, "a", 100, cached=32)
    sent(flight, "b", 50)
    assert (len(flight), flight.num_tokens) == (2, 64 + 48)
    flight.confirm("a", 64)  # a first chunk
    assert flight.num_tokens == 32 + 48
    flight.confirm("a", 16)  # evicted again, but not to be stored again
    flight.confirm("a", 96)
    assert (len(flight), flight.num_tokens) == (1, 48)
    flight.answer("b", prompt_tokens=70)
    assert flight.num_tokens == 64
    flight.remove("b")
    flight.remove("b")
    flight.confirm("unknown", 10)
    flight.answer("unknown", prompt_tokens=10)
    assert (len(flight), flight.num_tokens) == (0, 0)


def test_a_repeated_id_names_the_latest_request() -> None:
    flight = InFlight()
    sent(flight, "a", 160)
    sent(flight, "a", 32)
    assert (len(flight), flight.num_tokens) == (1, 32)


def retained_share(flight: InFlight, resident: int, *, is_batched: bool = False) -> float:
    return flight.next_batch(resident_tokens=resident, is_batched=is_batched).retained_share


def test_what_fits_stays_and_what_does_not_is_shared_out() -> None:
    flight = InFlight()
    sent(flight, "a", 1600)
    assert retained_share(flight, 10**9) == 1.0
    flight.capacity_tokens = 2000
    assert retained_share(flight, 400) == 1.0
    assert retained_share(flight, 2400) == 0.5
    flight.remove("a")
    assert retained_share(flight, 2000) == 1.0


def batch(flight: InFlight) -> int:
    return flight.next_batch(resident_tokens=0, is_batched=True).number


def test_one_batch_runs_and_what_is_sent_meanwhile_waits_for_the_next() -> None:
    flight = InFlight()
    first = batch(flight)
    assert batch(flight) == first, "only a request that is sent begins a batch"
    sent(flight, "a", 160)
    assert batch(flight) == first + 1
    sent(flight, "b", 160)
    sent(flight, "c", 160)
    assert batch(flight) == first + 1
    flight.answer("a", prompt_tokens=None)  # the next batch has begun with both
    assert batch(flight) == first + 2
    sent(flight, "d", 160)
    flight.confirm("a", 160)  # the event of a batch that is known to be over
    assert batch(flight) == first + 2
    flight.confirm("c", 160)
    flight.confirm("b", 160)
    assert batch(flight) == first + 3
    flight.answer("d", prompt_tokens=None)
    assert batch(flight) > first + 3, "an idle engine begins with the next request at once"


def test_a_batch_holds_no_more_than_fits_into_the_cache() -> None:
    flight = InFlight()
    flight.capacity_tokens = 1000
    sent(flight, "running", 160)
    sent(flight, "a", 640)
    number, room = batch(flight), flight.next_batch(resident_tokens=0, is_batched=True).free_tokens
    assert 200 < room < 360
    sent(flight, "b", 400)
    assert batch(flight) == number + 1
    sent(flight, "c", 400)
    assert batch(flight) == number + 1
    flight.confirm("c", 400)  # the engine took them otherwise: all before it are over, too
    assert batch(flight) > number + 1


def test_what_a_batch_computes_itself_evicts_nothing_that_it_finds() -> None:
    flight = InFlight()
    flight.capacity_tokens = 2000
    sent(flight, "running", 160)
    sent(flight, "waiting", 800)
    assert retained_share(flight, 2000) < retained_share(flight, 2000, is_batched=True) < 1.0
    assert retained_share(flight, 1800, is_batched=True) == 1.0


def test_requests_are_bounded() -> None:
    flight = InFlight()
    for number in range(10_050):
        sent(flight, str(number), 16)
    assert (len(flight), flight.num_tokens) == (10_000, 160_000)

"""Messages between workers, over real sockets on one event loop."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import zmq

from ragboost.booster.tenants import TenantKey
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.peers.exchange import PeerExchange
from ragboost.proxy.peers.messages import (
    Beat,
    KeptHistory,
    SentPrompt,
    Shared,
    SnapshotEnd,
    decode,
    encode,
)
from ragboost.proxy.peers.seat import WorkerSeat
from ragboost.proxy.upstream.backends import Load
from tests.eventually import eventually_async

pytestmark = pytest.mark.asyncio

LAYOUT = PromptLayout(
    TenantKey("m", "salt"), ("a", ("before", "b")), (3, 4), (1, 1), 5, 20, preamble="before"
)


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.learned: list[tuple[int, Shared]] = []
        self.restarts: list[int] = []
        self.loads: Mapping[str, Load] = {}

    def learn(self, worker: int, message: Shared) -> None:
        self.learned.append((worker, message))

    def restarted(self, worker: int) -> None:
        self.restarts.append(worker)

    def heard(self, worker: int, port: int, loads: Mapping[str, Load]) -> None:
        self.loads = loads


class Worker:
    """One side of an exchange."""

    def __init__(self, seat: WorkerSeat) -> None:
        self.ear = Ear()
        self.loads: dict[str, Load] = {}
        self.exchange = PeerExchange(seat, self.ear, loads=lambda: self.loads)


@pytest.fixture
def seats(tmp_path: Path) -> tuple[WorkerSeat, ...]:
    return WorkerSeat.of_all(2, str(tmp_path))


@pytest.fixture
async def pair(seats: tuple[WorkerSeat, ...]) -> AsyncIterator[list[Worker]]:
    pair = [Worker(seat) for seat in seats]
    for worker in pair:
        worker.exchange.open()
    await eventually_async(lambda: all(worker.exchange.is_synchronised for worker in pair))
    yield pair
    for worker in pair:
        await worker.exchange.close()


@pytest.mark.parametrize(
    "message",
    [
        SentPrompt("b", "id", LAYOUT),
        SentPrompt("b", None, LAYOUT._replace(exact_ends=(4, 9))),
        SentPrompt("b", "copies", LAYOUT._replace(documents=(("a", 1), ("before", ("a", 1))))),
        KeptHistory(b"\x00\xff"),
        Beat("e", 1, 2, {"b": Load(1, 2, 3)}, (1,)),
        SnapshotEnd(7),
    ],
)
async def test_a_message_is_decoded_as_it_was_encoded(message: Shared) -> None:
    assert decode(encode(message)) == message


DEEP = b"\x94\xaaSentPrompt\xa1b\xc0\x96\x93\xa1m\xa0\xa0" + b"\x91" * 100_000


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\xa4Beat", b"\x92\xaaSentPrompt\x01", DEEP], ids=len
)
async def test_a_message_that_is_none_is_dropped(data: bytes) -> None:
    assert decode(data) is None


async def test_what_one_worker_does_the_other_learns(pair: list[Worker]) -> None:
    pair[0].loads = {"b": Load(1, 2, 3)}
    pair[0].exchange.publish(SentPrompt("b", "id", LAYOUT))

    await eventually_async(lambda: pair[1].ear.learned, equals=[(0, SentPrompt("b", "id", LAYOUT))])
    await eventually_async(lambda: pair[1].ear.loads, equals={"b": Load(1, 2, 3)})
    assert not pair[0].ear.learned


async def test_a_restarted_worker_learns_what_everyone_did_before(
    pair: list[Worker], seats: tuple[WorkerSeat, ...]
) -> None:
    for number, worker in enumerate(pair):
        worker.exchange.publish(SentPrompt("b", f"of {number}", LAYOUT))
        worker.exchange.publish(KeptHistory(b"%d" % number))
    await eventually_async(lambda: len(pair[0].ear.learned) == len(pair[1].ear.learned) == 2)

    await pair[1].exchange.close()
    pair[1] = again = Worker(seats[1])
    again.exchange.open()
    await eventually_async(lambda: again.exchange.is_synchronised)

    assert pair[0].ear.restarts == [1]
    assert {(worker, encode(message)) for worker, message in again.ear.learned} == {
        (number, encode(message))
        for number in (0, 1)
        for message in (SentPrompt("b", f"of {number}", LAYOUT), KeptHistory(b"%d" % number))
    }


async def test_a_lost_message_is_noticed_and_arrives_with_a_snapshot(
    pair: list[Worker], seats: tuple[WorkerSeat, ...]
) -> None:
    lost = KeptHistory(b"lost")
    pair[0].exchange._keep(0, lost, encode(lost))
    pair[0].exchange.num_sent += 1  # as if it was sent, and dropped on the way

    await eventually_async(lambda: (0, lost) in pair[1].ear.learned)
    await eventually_async(lambda: pair[1].exchange.is_synchronised)
    assert pair[1].exchange.num_lost >= 1


async def test_a_dead_worker_is_not_alive_for_long(pair: list[Worker]) -> None:
    assert pair[0].exchange.is_alive(1)

    await pair[1].exchange.close()

    await eventually_async(lambda: not pair[0].exchange.is_alive(1))
    pair[0].exchange.publish(KeptHistory(b"x"))  # nobody hears it


async def test_foreign_bytes_change_nothing(
    pair: list[Worker], seats: tuple[WorkerSeat, ...], tmp_path: Path
) -> None:
    intruder = dataclasses.replace(seats[0], number=9, folder=str(tmp_path))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.bind(intruder.address(9))
    pair[0].exchange._sub.connect(intruder.address(9))
    poisoned = [
        [b"*"],
        [b"*", b"x", b"0", encode(KeptHistory(b"no"))],
        [b"*", b"1", b"-1", encode(KeptHistory(b"no"))],
        [b"*", b"9", b"0", encode(KeptHistory(b"no"))],
        [b"*", b"1", b"0", b"rubbish"],
        [b"0:", b"1", b"5", encode(KeptHistory(b"no"))],
    ]
    num_before = pair[0].exchange.num_received
    for frames in poisoned:
        socket.send_multipart(frames)
    await eventually_async(lambda: pair[0].exchange.num_received > num_before + 2)
    context.destroy(linger=0)

    assert not pair[0].ear.learned

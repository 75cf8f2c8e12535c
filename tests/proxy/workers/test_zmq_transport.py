"""Messages between workers, over real sockets on one event loop."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import zmq

from ragboost.booster.tenants import TenantKey
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.upstream.backend import Load
from ragboost.proxy.workers.identity import WorkerIdentity
from ragboost.proxy.workers.messages import (
    Beat,
    KeptHistory,
    LoadReport,
    SentPrompt,
    SharedMessage,
    SnapshotEnd,
    decode,
    encode,
)
from ragboost.proxy.workers.zmq_transport import ZmqTransport
from tests.eventually import eventually_async

pytestmark = pytest.mark.asyncio

LAYOUT = PromptLayout(
    TenantKey("m", "salt"), ("a", "before b"), (3, 4), (1, 1), 5, 20, prompt_prefix="before"
)


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.learned: list[tuple[int, SharedMessage]] = []
        self.restarts: list[int] = []
        self.loads: Mapping[str, Load] = {}

    def learn(self, worker_id: int, message: SharedMessage) -> None:
        self.learned.append((worker_id, message))

    def restarted(self, worker_id: int) -> None:
        self.restarts.append(worker_id)

    def heard(self, worker_id: int, port: int, report: LoadReport) -> None:
        self.loads = report.loads


class Worker:
    """One side of an exchange."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.ear = Ear()
        self.loads: dict[str, Load] = {}
        self.transport = ZmqTransport(identity, self.ear, report=lambda: LoadReport(self.loads))

    @property
    def is_synchronised(self) -> bool:
        """All others are alive, and their snapshots have arrived."""
        transport = self.transport
        return all(
            transport.is_alive(worker_id) and peer.next is not None
            for worker_id, peer in transport._peers.items()
        )


@pytest.fixture
def identities(tmp_path: Path) -> tuple[WorkerIdentity, ...]:
    return WorkerIdentity.of_all(2, str(tmp_path))


@pytest.fixture
async def pair(identities: tuple[WorkerIdentity, ...]) -> AsyncIterator[list[Worker]]:
    pair = [Worker(identity) for identity in identities]
    for worker in pair:
        worker.transport.open()
    await eventually_async(lambda: all(worker.is_synchronised for worker in pair))
    yield pair
    for worker in pair:
        await worker.transport.close()


@pytest.mark.parametrize(
    "message",
    [
        SentPrompt("b", "id", LAYOUT),
        SentPrompt("b", None, LAYOUT._replace(exact_ends=(4, 9))),
        SentPrompt("b", "copies", LAYOUT._replace(documents=(("a", 1), ("before a", 1)))),
        KeptHistory(b"\x00\xff"),
        Beat("e", 1, 2, LoadReport({"b": Load(1, 2, 3)}), (1,)),
        SnapshotEnd(7),
    ],
)
async def test_a_message_is_decoded_as_it_was_encoded(message: SharedMessage) -> None:
    assert decode(encode(message)) == message


DEEP = b"\x94\xaaSentPrompt\xa1b\xc0\x96\x93\xa1m\xa0\xa0" + b"\x91" * 100_000


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\xa4Beat", b"\x92\xaaSentPrompt\x01", DEEP], ids=len
)
async def test_a_message_that_is_none_is_dropped(data: bytes) -> None:
    assert decode(data) is None


async def test_what_one_worker_does_the_other_learns(pair: list[Worker]) -> None:
    pair[0].loads = {"b": Load(1, 2, 3)}
    pair[0].transport.publish(SentPrompt("b", "id", LAYOUT))

    await eventually_async(lambda: pair[1].ear.learned, equals=[(0, SentPrompt("b", "id", LAYOUT))])
    await eventually_async(lambda: pair[1].ear.loads, equals={"b": Load(1, 2, 3)})
    assert not pair[0].ear.learned


async def test_a_restarted_worker_learns_what_everyone_did_before(
    pair: list[Worker], identities: tuple[WorkerIdentity, ...]
) -> None:
    for number, worker in enumerate(pair):
        worker.transport.publish(SentPrompt("b", f"of {number}", LAYOUT))
        worker.transport.publish(KeptHistory(b"%d" % number))
    await eventually_async(lambda: len(pair[0].ear.learned) == len(pair[1].ear.learned) == 2)

    await pair[1].transport.close()
    pair[1] = again = Worker(identities[1])
    again.transport.open()
    await eventually_async(lambda: again.is_synchronised)

    assert pair[0].ear.restarts == [1]
    assert {(worker, encode(message)) for worker, message in again.ear.learned} == {
        (number, encode(message))
        for number in (0, 1)
        for message in (SentPrompt("b", f"of {number}", LAYOUT), KeptHistory(b"%d" % number))
    }


async def test_a_lost_message_is_noticed_and_arrives_with_a_snapshot(
    pair: list[Worker], identities: tuple[WorkerIdentity, ...]
) -> None:
    lost = KeptHistory(b"lost")
    pair[0].transport._keep(0, lost, encode(lost))
    pair[0].transport.num_sent += 1  # as if it was sent, and dropped on the way

    await eventually_async(lambda: (0, lost) in pair[1].ear.learned)
    await eventually_async(lambda: pair[1].is_synchronised)
    assert pair[1].transport.num_lost >= 1


async def test_a_dead_worker_is_not_alive_for_long(pair: list[Worker]) -> None:
    assert pair[0].transport.is_alive(1)

    await pair[1].transport.close()

    await eventually_async(lambda: not pair[0].transport.is_alive(1))
    pair[0].transport.publish(KeptHistory(b"x"))  # nobody hears it


async def test_foreign_bytes_change_nothing(
    pair: list[Worker], identities: tuple[WorkerIdentity, ...], tmp_path: Path
) -> None:
    intruder = dataclasses.replace(identities[0], worker_id=9, folder=str(tmp_path))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.bind(intruder.address(9))
    pair[0].transport._sub.connect(intruder.address(9))
    poisoned = [
        [b"*"],
        [b"*", b"x", b"0", encode(KeptHistory(b"no"))],
        [b"*", b"1", b"-1", encode(KeptHistory(b"no"))],
        [b"*", b"9", b"0", encode(KeptHistory(b"no"))],
        [b"*", b"1", b"0", b"rubbish"],
        [b"0:", b"1", b"5", encode(KeptHistory(b"no"))],
    ]
    num_before = pair[0].transport.num_received
    for frames in poisoned:
        socket.send_multipart(frames)
    await eventually_async(lambda: pair[0].transport.num_received > num_before + 2)
    context.destroy(linger=0)

    assert not pair[0].ear.learned

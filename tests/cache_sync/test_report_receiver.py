"""Reports of the plug-in inside an engine, applied to mirrors."""

import pytest

from ragboost.cache_events import BlockStored, EventBatch, encode_batch
from ragboost.cache_sync.event_stream import StreamState
from ragboost.cache_sync.report_receiver import ReportReceiver
from ragboost.engine_hooks.reports import Report, decode_reply, encode
from ragboost.errors import RequestError


def frame(seq: int) -> tuple[int, bytes]:
    stored = BlockStored(block_hashes=[seq + 1], token_ids=[seq], block_size=1)
    return seq, encode_batch(EventBatch(ts=seq + 1.0, events=(stored,)))


def test_a_silent_stream_is_a_fallback_until_it_reports_again() -> None:
    receiver = ReportReceiver(silence_s=10.0)

    def report(now: float, **fields: object) -> int | None:
        body = encode(Report(stream="a", epoch="e", **fields))  # type: ignore[arg-type]
        return decode_reply(receiver.receive(body, now=now)).replay_from

    assert report(0.0, batches=[frame(0)]) == 0
    assert report(0.0, batches=[frame(0)], is_replay=True, is_last=True) is None
    stream = receiver.streams["a"]
    assert stream.state is StreamState.EXACT
    receiver.expire(now=9.0)
    assert stream.state is StreamState.EXACT
    receiver.expire(now=11.0)
    assert stream.state is StreamState.FALLBACK
    assert report(12.0) == 0
    assert stream.state is StreamState.DEGRADED
    assert report(12.0, batches=[frame(0)], is_replay=True, is_last=True) is None
    assert stream.state is StreamState.EXACT


def test_a_body_that_is_no_report_is_a_request_error() -> None:
    receiver = ReportReceiver()
    for body in (b"", b"{}", encode_batch(EventBatch(ts=1.0, events=()))):
        with pytest.raises(RequestError, match="invalid cache event report"):
            receiver.receive(body, now=0.0)

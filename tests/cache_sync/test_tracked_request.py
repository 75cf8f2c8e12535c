"""Names of requests in the events of their engine."""

from ragboost.cache_sync.tracked_request import EngineRequestId


def test_an_id_of_megabytes_is_neither_kept_nor_replaced() -> None:
    engine_id = EngineRequestId.of({"session_id": "x" * 2**21}, [])
    assert not engine_id.is_generated
    assert len(engine_id.name) < 100
    assert EngineRequestId.of({"session_id": "x" * 256}, []).name == "x" * 256

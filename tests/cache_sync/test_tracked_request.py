"""Names of requests in the events of their engine."""

import pytest

from ragboost.cache_sync.tracked_request import EngineRequestId


def test_an_id_of_megabytes_is_neither_kept_nor_replaced() -> None:
    engine_id = EngineRequestId.of({"session_id": "x" * 2**21}, [])
    assert not engine_id.is_generated
    assert len(engine_id.name) < 100
    assert EngineRequestId.of({"session_id": "x" * 256}, []).name == "x" * 256


@pytest.mark.parametrize("name", ["\ud800", "a\x00b", "a\nb"])
def test_an_id_that_no_message_can_carry_is_neither_kept_nor_replaced(name: str) -> None:
    engine_id = EngineRequestId.of({"session_id": name}, [])
    assert not engine_id.is_generated
    assert engine_id.name.isprintable()

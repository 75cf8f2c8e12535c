"""Messages of replicas come back as they were encoded, and what is none is dropped."""

import pytest

from ragboost.booster.tenants import TenantKey
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.proxy.replicas.messages import (
    LoadReport,
    ReplicaMessage,
    SentPrompt,
    decode,
    encode,
)
from ragboost.proxy.upstream.backend import Load

LAYOUT = PromptLayout(
    TenantKey("m", "salt"), ("a", "before b"), (3, 4), (1, 1), 5, 20, prompt_prefix="before"
)


@pytest.mark.parametrize(
    "message",
    [
        ReplicaMessage("a", prompts=(SentPrompt("b", "id", LAYOUT),)),
        ReplicaMessage("a", prompts=(SentPrompt("b", None, LAYOUT._replace(num_exact=1)),)),
        ReplicaMessage(
            "a",
            prompts=(SentPrompt("b", "c", LAYOUT._replace(documents=(("a", 1), ("before a", 1)))),),
        ),
        ReplicaMessage("a", LoadReport({"b": Load(1, 2, 3)})),
    ],
)
def test_a_message_is_decoded_as_it_was_encoded(message: ReplicaMessage) -> None:
    assert decode(encode(message)) == message


DEEP = b"\x94\xaeReplicaMessage\xa1a\xc0\x91\x94\xaaSentPrompt\xa1b\xc0\x96\x93\xa1m\xa0\xa0"
DEEP += b"\x91" * 100_000


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93\xaeReplicaMessage", b"\x92\xaeReplicaMessage\x01", DEEP], ids=len
)
def test_a_message_that_is_none_is_dropped(data: bytes) -> None:
    assert decode(data) is None

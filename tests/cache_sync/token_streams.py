"""Let the streams of a test module keep mirrors that know tokens."""

from collections.abc import Iterator

import pytest

from ragboost.cache_sync.event_stream import EventStream
from tests.cache_sync.token_mirror import TokenMirror


def mirror_of(stream: EventStream) -> TokenMirror:
    """Return the mirror of a stream that was made while `token_mirrors` is in use."""
    assert isinstance(stream.mirror, TokenMirror)
    return stream.mirror


@pytest.fixture(autouse=True, scope="module")
def token_mirrors() -> Iterator[None]:
    """Let all streams have mirrors that know tokens; import it where that is wanted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ragboost.cache_sync.event_stream.PrefixMirror", TokenMirror)
        yield

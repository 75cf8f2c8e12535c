"""What an engine leaves on disk that is killed while it writes chunks.

The last file of this folder: the shared server must be started again for every test that follows.
"""

from pathlib import Path

import pytest

from ragboost.chunk_cache.store.disk import DiskTier
from tests.engines.servers import EngineServer
from tests.engines.test_chunks_served import ask, chat
from tests.eventually import eventually

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


def test_a_killed_engine_leaves_a_store_that_opens(server: EngineServer) -> None:
    assert server.chunks is not None
    folder = Path(server.chunks["directory"])
    ask(server, chat([0, 1, 2, 3]))
    eventually(lambda: bool(list(folder.glob("*.safetensors"))))
    for order in ([0, 1], [2, 3], [4, 5]):  # the store is being written
        ask(server, chat(order))

    server.stop(at_once=True)

    tier = DiskTier(folder, capacity_bytes=1 << 30)
    keys = [file.stem for file in folder.glob("*.safetensors")]
    assert keys
    for key in keys:
        assert tier.load(key) is not None
    assert tier.num_refused == 0

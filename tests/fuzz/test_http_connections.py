"""Random HTTP streams: the backend gets the requests that h11 reads in them, and no others."""

from collections.abc import Callable, Iterator

import pytest

from tests.fakes.proxy import ProxyServer
from tests.fuzz.http_driver import HttpDriver, HttpRecorder

NUM_STREAMS = 200


@pytest.fixture
def recorder() -> Iterator[HttpRecorder]:
    with HttpRecorder() as recorder:
        yield recorder


async def test_the_backend_gets_the_requests_that_h11_reads(
    recorder: HttpRecorder, start_proxy: Callable[..., ProxyServer]
) -> None:
    limits = {"header_timeout_s": 2, "body_timeout_s": 2, "keep_alive_s": 2}
    proxy = start_proxy(proxy=limits, backend={"url": recorder.url})
    driver = HttpDriver(recorder, port=proxy.port)
    await driver.run(range(NUM_STREAMS))
    assert driver.problems == []
    assert driver.counts.total() == NUM_STREAMS

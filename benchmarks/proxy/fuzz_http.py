"""Send random HTTP streams to the proxy and compare what passes with what h11 reads in them.

    python -m benchmarks.proxy.fuzz_http --streams 100000
    python -m benchmarks.proxy.fuzz_http --first 4711 --streams 1

Prints each difference with the seed of its stream; the exit code is 1 if there is one.
"""

import argparse
import asyncio
import sys

from rich.console import Console

from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fuzz.http_driver import HttpDriver, HttpRecorder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=10_000, help="connections to send")
    parser.add_argument("--first", type=int, default=0, help="seed of the first stream")
    arguments = parser.parse_args()
    limits = {"header_timeout_s": 2, "body_timeout_s": 2, "keep_alive_s": 2}
    with (
        HttpRecorder() as recorder,
        ProxyServer(proxy_settings(recorder.url, proxy=limits)) as proxy,
    ):
        driver = HttpDriver(recorder, port=proxy.port)
        asyncio.run(driver.run(range(arguments.first, arguments.first + arguments.streams)))
    console = Console()
    for problem in driver.problems:
        console.print(problem, markup=False, soft_wrap=True)
    for result, count in driver.counts.most_common():
        console.print(f"{count:8} {result}")
    sys.exit(bool(driver.problems))


if __name__ == "__main__":
    main()

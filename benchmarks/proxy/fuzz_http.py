"""Send random HTTP streams to the proxy and compare what passes with what h11 reads in them.

    python -m benchmarks.proxy.fuzz_http --streams 100000
    python -m benchmarks.proxy.fuzz_http --first 4711 --streams 1

Prints each difference with the seed of its stream; the exit code is 1 if there is one.
"""

import asyncio
import sys
from typing import Any

from benchmarks.command import make_parser, report
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fuzz.http_driver import HttpDriver, HttpRecorder


def main() -> None:
    parser = make_parser(__doc__)
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
    counts = {"requests that passed": driver.num_passed, "that h11 reads": driver.num_read}
    counts |= driver.counts.most_common()
    result = {"problems": driver.problems, "counts": counts}
    report(result, arguments, show)
    sys.exit(bool(driver.problems))


def show(result: dict[str, Any]) -> None:
    print(*result["problems"], *(f"{n:8} {name}" for name, n in result["counts"].items()), sep="\n")


if __name__ == "__main__":
    main()

"""Send random HTTP streams to a proxy, and compare what its backend receives with h11's reading."""

import asyncio
import re
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Self

import h11

from tests.eventually import DEADLINE_S
from tests.fuzz.http_oracle import read_stream
from tests.fuzz.http_streams import HttpStream, SentRequest, make_stream

_CONCURRENCY = 32
_STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
_ECHO = re.compile(rb"\[(/v1/[^\]]*)\]")


class HttpRecorder:
    """A backend that keeps each request, by the seed in its target, and echoes the target.

    Attributes:
        url: base URL.
        requests: by seed; -1 has those that no stream can have meant.
    """

    def __init__(self) -> None:
        self.requests: defaultdict[int, list[SentRequest]] = defaultdict(list)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _run(self) -> None:
        handlers: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            try:
                await self._serve(reader, writer)
            finally:
                handlers.discard(task)
                writer.close()

        server = await asyncio.start_server(handle, sock=self._listener)
        await self._stopping.wait()
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        head, body = None, b""
        while True:
            event = connection.next_event()  # the proxy's own requests are always valid
            if event is h11.NEED_DATA:
                try:
                    connection.receive_data(await reader.read(65536))
                except ConnectionResetError:
                    return
            elif isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                self._record(SentRequest(head.method.decode(), head.target.decode(), body))
                echo = b"[" + head.target + b"]"
                answer = h11.Response(status_code=200, headers=[("content-length", str(len(echo)))])
                writer.write(connection.send(answer) or b"")
                if head.method != b"HEAD":
                    writer.write(connection.send(h11.Data(data=echo)) or b"")
                writer.write(connection.send(h11.EndOfMessage()) or b"")
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            else:
                return

    def _record(self, request: SentRequest) -> None:
        found = re.match(r"/v1/(\d+)/", request.target)
        if found is not None or request.target.startswith("/v1"):  # beside the proxy's own probes
            self.requests[int(found[1]) if found else -1].append(request)


class HttpDriver:
    """Sends streams to a proxy in front of a recorder.

    Attributes:
        problems: sentences, each with the seed of its stream.
        counts: streams by what came of them.
        num_passed: requests that reached the backend.
        num_read: requests that h11 reads.
    """

    def __init__(self, recorder: HttpRecorder, *, port: int) -> None:
        self._recorder = recorder
        self._port = port
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.num_passed = self.num_read = 0

    async def run(self, seeds: Iterable[int]) -> None:
        """Send the streams of these seeds, some at a time."""
        todo = iter(seeds)

        async def work() -> None:
            for seed in todo:
                stream = make_stream(seed)
                received = await self._send(stream, seed)
                self._compare(stream, received, seed)

        await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
        for request in self._recorder.requests[-1]:
            if (request.method, request.target) == ("GET", "/v1/models"):
                continue  # the proxy itself, which asks what the backend is
            self.problems.append(f"a request that nobody sent: {request}")

    async def _send(self, stream: HttpStream, seed: int) -> bytes:
        """Send a stream; return all bytes received until the proxy closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def send() -> None:
            try:
                for segment in stream.segments:
                    writer.write(segment)
                    await writer.drain()
                    await asyncio.sleep(0)
            except ConnectionError:
                pass  # the proxy has closed the connection

        sending = asyncio.create_task(send())
        received = b""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while data := await reader.read(65536):
                    received += data
        except ConnectionError:
            pass
        except TimeoutError:
            self.problems.append(f"seed {seed}: the connection does not end")
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        return received

    def _compare(self, stream: HttpStream, received: bytes, seed: int) -> None:
        reading, passed = read_stream(stream.data), self._recorder.requests[seed]
        lenient = read_stream(stream.data, is_lenient=True).requests
        read = reading.requests + lenient[len(reading.requests) :]
        statuses = [int(status) for status in _STATUS.findall(received) if status != b"100"]
        answered = [number for number, status in enumerate(statuses) if status == 200]
        echoed = [target.decode() for target in _ECHO.findall(received)]
        if len(answered) != len(passed):
            self.problems.append(f"seed {seed}: {len(passed)} passed, but {statuses}")
        elif echoed != [one.target for one in passed if one.method != "HEAD"]:
            self.problems.append(f"seed {seed}: responses out of order: {echoed}")
        elif len(statuses) < len(reading.requests) and statuses[-1:] < [400]:
            self.problems.append(f"seed {seed}: some were lost: {statuses}")
        for number, request in zip(answered, passed, strict=False):
            if number >= len(read) or request != read[number]:
                other = read[number] if number < len(read) else "nothing"
                self.problems.append(f"seed {seed}: {request} passed, {other} was sent; {statuses}")
                break
        result = f"refused with {statuses[-1]}" if statuses[-1:] >= [400] else "answered"
        self.counts[f"{result}, {'rejected' if reading.problem else 'accepted'} by h11"] += 1
        self.num_passed += len(passed)
        self.num_read += len(reading.requests)

"""Compressed bodies, and bodies in UTF-16 or with a byte order mark, are boosted as any other."""

import asyncio
import codecs
import gzip
import json
import sys
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragboost.config.memory import MIB, PROCESS_BYTES
from ragboost.proxy.asgi import content_coding, request_body
from ragboost.proxy.asgi.content_coding import BodyTooLargeError, decode
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.sockets import open_request

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Who? \u00fc \U0001f600"}]
OURS = {"documents": ["Maria signed.", "The rent is due."]}
BODY = json.dumps({"model": "m", "messages": QUESTION, "ragboost": OURS}).encode()
LIMIT = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return coder.compress(data) + coder.flush()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


def zstd_of_unknown_length(data: bytes) -> bytes:
    compressor = pytest.importorskip("zstandard").ZstdCompressor(write_content_size=False)
    coder = compressor.compressobj()
    return bytes(coder.compress(data) + coder.flush())


def brotli(data: bytes) -> bytes:
    return bytes(pytest.importorskip("brotli").compress(data))


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstd),
    "zstd of unknown length": ("zstd", zstd_of_unknown_length),
    "br": ("br", brotli),
    "gzip in two members": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "gzip in gzip": ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
    "deflate in gzip": ("deflate ,identity, gzip", lambda d: gzip.compress(zlib.compress(d))),
}


@pytest.mark.parametrize("name", CODINGS)
def test_a_compressed_body_is_boosted_and_forwarded_decoded(
    client: httpx.Client, engine: FakeEngine, name: str
) -> None:
    coding, compress = CODINGS[name]
    answer = client.post(CHAT, content=compress(BODY), headers={"content-encoding": coding})
    assert (answer.status_code, answer.headers.get("x-ragboost-documents")) == (200, "2")
    received = engine.requests[-1]
    assert received.header("content-encoding") is None
    assert received.header("content-length") == str(len(received.body))
    assert "ragboost" not in received.json
    assert "Maria signed." in received.json["messages"][0]["content"]


def test_codings_in_two_headers_are_undone_from_the_last_to_the_first(
    client: httpx.Client, engine: FakeEngine
) -> None:
    headers = [("content-encoding", "deflate"), ("content-encoding", "gzip")]
    answer = client.post(CHAT, content=gzip.compress(zlib.compress(BODY)), headers=headers)
    assert answer.headers["x-ragboost-documents"] == "2"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_compressed_body_without_documents_reaches_every_endpoint_decoded(
    client: httpx.Client, engine: FakeEngine, path: str
) -> None:
    body = b'{"model": "m",  "messages": [], "prompt": "a", "input": "a"}'
    headers = {"content-encoding": "gzip"}
    assert client.post(path, content=gzip.compress(body), headers=headers).status_code == 200
    assert engine.requests[-1].body == body
    assert engine.requests[-1].header("content-encoding") is None


def test_the_session_api_reads_compressed_bodies(client: httpx.Client, engine: FakeEngine) -> None:
    headers = {"content-encoding": "gzip"}
    new = client.post("/v1/sessions", content=gzip.compress(b'{"model": "m"}'), headers=headers)
    assert new.status_code == 201
    turn = json.dumps({"query": "Who?", "documents": OURS["documents"]}).encode()
    path = f"/v1/sessions/{new.json()['id']}/chat/completions"
    answer = client.post(path, content=gzip.compress(turn), headers=headers)
    assert answer.headers["x-ragboost-documents"] == "2"


def test_other_routes_pass_compressed_bodies_as_they_are(
    client: httpx.Client, engine: FakeEngine
) -> None:
    packed = gzip.compress(b"{}")
    client.post("/v1/embeddings", content=packed, headers={"content-encoding": "gzip"})
    received = engine.requests[-1]
    assert received.header("content-encoding") == "gzip"  # aiohttp has decoded the body
    assert received.header("content-length") == str(len(packed))


@pytest.mark.parametrize(
    "coding", ["compress", "gzip, lzma", ", ".join(["gzip"] * 5), "aws-chunked"]
)
def test_a_coding_that_the_proxy_cannot_decode_is_a_415_that_names_those_it_can(
    client: httpx.Client, engine: FakeEngine, coding: str
) -> None:
    answer = client.post(CHAT, content=gzip.compress(BODY), headers={"content-encoding": coding})
    assert answer.status_code == 415
    assert "send gzip, deflate" in answer.json()["error"]["message"]
    assert engine.requests == []


def test_a_coding_whose_package_is_not_installed_is_a_415(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zstandard", "brotli"):
        monkeypatch.setitem(sys.modules, name, None)
    codings, _ = content_coding._find_codings()
    monkeypatch.setattr(content_coding, "_CODINGS", codings)
    for coding in ("zstd", "br"):
        answer = client.post(CHAT, content=b"\x28\xb5", headers={"content-encoding": coding})
        assert answer.status_code == 415
        assert "send gzip, deflate, or" in answer.json()["error"]["message"]
    assert engine.requests == []


class Slow:
    """A stand-in for `brotli.Decompressor`, which is called as its documentation says: it stops at
    the limit, and wants to be emptied before it gets more."""

    def __init__(self) -> None:
        self._coder, self._rest = zlib.decompressobj(), b""

    def is_finished(self) -> bool:
        return self._coder.eof and not self._rest

    def can_accept_more_data(self) -> bool:
        return not self._rest

    def process(self, data: bytes, *, output_buffer_limit: int) -> bytes:
        assert not (data and self._rest)
        self._rest += self._coder.decompress(data)
        size = max(1, output_buffer_limit // 2)
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def test_a_decoder_that_wants_to_be_emptied_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(Decompressor=Slow, error=zlib.error)
    monkeypatch.setitem(sys.modules, "brotli", module)  # type: ignore[arg-type]
    codings, _ = content_coding._find_codings()
    monkeypatch.setattr(content_coding, "_CODINGS", codings)
    body = BODY * 2000
    assert decode(zlib.compress(body), ["br"], max_bytes=LIMIT) == body
    with pytest.raises(BodyTooLargeError):
        decode(zlib.compress(body), ["br"], max_bytes=len(body) - 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda d: d + b"x",
    ],
)
def test_a_damaged_body_is_a_400_that_names_the_coding(
    client: httpx.Client, engine: FakeEngine, coding: str, damage: Callable[[bytes], bytes]
) -> None:
    body = damage(CODINGS["zlib" if coding == "deflate" else coding][1](BODY))
    answer = client.post(CHAT, content=body, headers={"content-encoding": coding})
    assert answer.status_code == 400
    assert f"is not {coding}, as its content-encoding says" in answer.json()["error"]["message"]
    assert engine.requests == []


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br", "utf-8", "gzip, utf-8"])
def test_a_plain_body_that_claims_a_coding_is_read_as_it_is(
    client: httpx.Client, engine: FakeEngine, coding: str
) -> None:
    answer = client.post(CHAT, content=BODY, headers={"content-encoding": coding})
    assert (answer.status_code, answer.headers["x-ragboost-documents"]) == (200, "2")
    assert engine.requests[-1].header("content-encoding") is None


@pytest.mark.parametrize("name", ["gzip", "deflate", "zstd", "br", "gzip in gzip"])
def test_a_body_that_is_larger_than_allowed_when_decoded_is_a_413(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], name: str
) -> None:
    proxy = start_proxy(proxy={"max_body_bytes": LIMIT})
    coding, compress = CODINGS[name]
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (50 * LIMIT, 413)):
        body = compress(b'{"model": "m", "prompt": "a"}'.ljust(size))
        headers = {"content-encoding": coding}
        answer = httpx.post(proxy.url + "/v1/completions", content=body, headers=headers)
        assert answer.status_code == status, size
    assert "proxy.max_body_bytes" in answer.json()["error"]["message"]
    assert len(engine.requests) == 1


def test_no_more_is_decoded_than_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    decompress = content_coding._decompress

    def record(*args: Any) -> bytes:
        piece = decompress(*args)
        written.append(len(piece))
        return piece

    monkeypatch.setattr(content_coding, "_decompress", record)
    for name, most in (("gzip", LIMIT + 1), ("deflate", LIMIT + 1), ("zstd", LIMIT + (32 << 20))):
        coding, compress = CODINGS[name]
        written.clear()
        with pytest.raises(BodyTooLargeError):
            decode(compress(bytes(100 * LIMIT)), [coding], max_bytes=LIMIT)
        assert sum(written) <= most


def test_a_body_of_very_many_members_is_refused_without_reading_them() -> None:
    with pytest.raises(Exception, match="is not gzip"):
        decode(gzip.compress(b"") * 500_000, ["gzip"], max_bytes=LIMIT)


def test_bytes_that_a_body_gains_count_among_those_of_all_requests_until_it_has_ended(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy(proxy={"max_body_bytes": LIMIT, "memory_bytes": PROCESS_BYTES + MIB})
    packed = gzip.compress(b'{"model": "m", "prompt": "a"}'.ljust(LIMIT - 1))
    url, headers = proxy.url + "/v1/completions", {"content-encoding": "gzip"}
    assert httpx.post(url, content=packed, headers=headers).status_code == 200
    eventually(lambda: proxy.app.state.bodies.num_bytes, equals=0)
    engine.misbehave(hold=True)
    with open_request(proxy.port, "/v1/completions", {"model": "m", "prompt": "a"}):
        eventually(lambda: engine.num_active, equals=1)
        engine.behave()
        answer = httpx.post(url, content=packed, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    eventually(lambda: proxy.app.state.bodies.num_bytes, equals=0)
    assert httpx.post(url, content=packed, headers=headers).status_code == 200


def test_bodies_are_decoded_off_the_event_loop(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_on_loop = []

    def record(*args: Any, **kwargs: Any) -> bytes:
        try:
            asyncio.get_running_loop()
            is_on_loop.append(True)
        except RuntimeError:
            is_on_loop.append(False)
        return decode(*args, **kwargs)

    monkeypatch.setattr(request_body, "decode", record)
    client.post(CHAT, content=gzip.compress(BODY), headers={"content-encoding": "gzip"})
    assert is_on_loop == [False]


@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/sessions"])
def test_a_body_in_another_unicode_encoding_is_read_as_engines_read_it(
    client: httpx.Client, engine: FakeEngine, encoding: str, path: str
) -> None:
    body = json.dumps(json.loads(BODY), ensure_ascii=False) if path == CHAT else '{"model": "m"}'
    headers = {"content-type": "application/json; charset=utf-16"}
    answer = client.post(path, content=body.encode(encoding), headers=headers)
    if path != CHAT:
        assert answer.status_code == 201
        return
    assert answer.headers["x-ragboost-documents"] == "2"
    received = engine.requests[-1]
    assert received.json["messages"][0]["content"].endswith(str(QUESTION[0]["content"]))
    assert received.header("content-type") == "application/json"


def test_surrogates_in_utf_8_are_read_as_engines_read_them(
    client: httpx.Client, engine: FakeEngine
) -> None:
    odd = "\ud83d \ud800"
    body = {**json.loads(BODY), "user": odd, odd: 1}
    body["messages"] = [{"role": "user", "content": odd}] * 2
    body["ragboost"]["documents"].append(odd)
    text = json.dumps(body, ensure_ascii=False)
    answer = client.post(CHAT, content=text.encode("utf-8", "surrogatepass"))
    assert answer.headers["x-ragboost-documents"] == "3"
    sent = engine.requests[-1].json
    assert (sent["user"], sent[odd], sent["messages"][0]["content"]) == (odd, 1, odd)
    assert sent["messages"][1]["content"].count(odd) == 2


@given(text=st.text(), encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"]))
@example(text="\ud800 alone", encoding="utf-16-le")
def test_decoding_keeps_every_text(text: str, encoding: str) -> None:
    body = json.dumps({"text": text}, ensure_ascii=False)
    decoded = request_body.as_utf8(body.encode(encoding, "surrogatepass"))
    assert json.loads(decoded) == {"text": text}


@pytest.mark.parametrize("body", [codecs.BOM_UTF16_LE + b"{", b"\x00\x00{", b"\xff", b"{\x00"])
def test_bytes_in_no_encoding_are_left_to_the_backend(
    client: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    answer = client.post(CHAT, content=body)
    assert answer.headers["x-ragboost-bypass"] == "malformed_body"
    assert engine.requests[-1].body in (body, b"{")

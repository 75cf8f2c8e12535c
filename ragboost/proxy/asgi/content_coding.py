"""Undo the content codings of a request body (RFC 9110 section 8.4), in bounded memory.

Knows bytes. Does not know which bodies are decoded, or what they contain.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ragboost.errors import RequestError
from ragboost.requests.headers import RawHeaders

ENCODING = b"content-encoding"
_MAX_CODINGS = 4  # of one body, one inside the other
_MAX_MEMBERS = 1024  # of a gzip or zstd body; each one costs time, however small it is
_WINDOW_BYTES = 64 * 1024
# A zstd block of four bytes may stand for 128 KiB, and `zstandard` does not limit its output: what
# it writes for one piece of a body is at most 32 MiB.
_ZSTD_PIECE_BYTES = 1024
_ZSTD_MAX_WINDOW_BYTES = 8 * 1024 * 1024  # RFC 9659
_GZIP, _ZLIB, _DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class UnsupportedCodingError(RequestError):
    status = 415


class BodyTooLargeError(RequestError):
    status = 413


class _CorruptError(Exception):
    """The body is not in the coding that it claims."""


class _Member(Protocol):
    """The decoder of one member of a body, which ends by itself."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes:
        """Bytes behind the end."""

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


class _Coding(NamedTuple):
    begin: Callable[[bytes], _Member]
    max_members: int = 1
    piece_bytes: int = _WINDOW_BYTES


def codings_of(headers: RawHeaders) -> Sequence[str]:
    """Return the content codings of a body in the order in which they were applied."""
    values = [value for name, value in headers if name == ENCODING]
    if not values:
        return ()
    names = [name.strip().lower() for name in b",".join(values).decode("latin-1").split(",")]
    return [name.removeprefix("x-") for name in names if name not in ("", "identity")]


def decode(body: bytes, codings: Sequence[str], *, max_bytes: int) -> bytes:
    """Undo codings, the last one first.

    Raises:
        UnsupportedCodingError: one is unknown, or its package is not installed.
        BodyTooLargeError: the result of one has more than `max_bytes`.
        RequestError: the body is damaged, cut, or in another coding.
    """
    unknown = [name for name in codings if name not in _CODINGS]
    if unknown or len(codings) > _MAX_CODINGS:
        problem = f"{unknown[0][:40]!r} is not supported" if unknown else "has too many codings"
        raise UnsupportedCodingError(
            f"content-encoding: {problem}; send {', '.join(_CODINGS)}, or an uncompressed body"
        )
    for name in reversed(codings):
        try:
            body = _decode_one(body, _CODINGS[name], max_bytes=max_bytes) if body else body
        except _CorruptError as error:
            raise RequestError(
                f"the request body is not {name}, as its content-encoding says: {error}"
            ) from None
    return body


def _decode_one(body: bytes, coding: _Coding, *, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    view, at, left, num_members = memoryview(body), 0, max_bytes, 0
    member: _Member | None = None
    while at < len(view):
        if member is None:
            num_members += 1
            if num_members > coding.max_members:
                raise _CorruptError("further bytes stand behind its end")
            member = coding.begin(body)
        data = view[at : at + coding.piece_bytes]
        piece = _decompress(member, data, left + 1)
        left -= len(piece)
        if left < 0:
            raise BodyTooLargeError(
                f"the decoded request body has more than {max_bytes} bytes (proxy.max_body_bytes)"
            )
        pieces.append(piece)
        at += len(data)
        if member.eof:
            at -= len(member.unused_data)
            member = None
    if member is not None:
        raise _CorruptError("its end is missing")
    return b"".join(pieces)


def _decompress(member: _Member, data: memoryview, max_length: int) -> bytes:
    try:
        return member.decompress(data, max_length)
    except _ERRORS as error:
        raise _CorruptError(str(error).rpartition(": ")[2]) from None


def _begin_deflate(body: bytes) -> _Member:
    """Read `deflate` with the header of zlib, as the standard says, or as some send it, without."""
    has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return zlib.decompressobj(_ZLIB if has_header else _DEFLATE)


class _ZstdMember:
    def __init__(self, zstandard: Any, _body: bytes) -> None:
        options = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
        self._decoder = options.decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._decoder.unused_data)

    def decompress(self, data: memoryview, _max_length: int, /) -> bytes:
        return bytes(self._decoder.decompress(data))


class _BrotliMember:
    unused_data = b""  # the decoder refuses them

    def __init__(self, brotli: Any, _body: bytes) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._decoder.is_finished())

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        pieces = [self._decoder.process(bytes(data), output_buffer_limit=max_length)]
        while pieces[-1] and not (self.eof or self._decoder.can_accept_more_data()):
            if (left := max_length - sum(map(len, pieces))) <= 0:
                break
            pieces.append(self._decoder.process(b"", output_buffer_limit=left))
        return b"".join(pieces)


def _find_codings() -> tuple[Mapping[str, _Coding], tuple[type[Exception], ...]]:
    """Return the codings whose decoders are installed, and what these raise."""
    codings = {
        "gzip": _Coding(lambda _: zlib.decompressobj(_GZIP), max_members=_MAX_MEMBERS),
        "deflate": _Coding(_begin_deflate),
    }
    errors: list[type[Exception]] = [zlib.error]
    try:
        import zstandard
    except ImportError:
        pass
    else:
        begin = partial(_ZstdMember, zstandard)
        codings["zstd"] = _Coding(begin, _MAX_MEMBERS, _ZSTD_PIECE_BYTES)
        errors.append(zstandard.ZstdError)
    try:
        import brotli
    except ImportError:
        pass
    else:
        if hasattr(brotli.Decompressor, "can_accept_more_data"):  # 1.2: it can bound its output
            codings["br"] = _Coding(partial(_BrotliMember, brotli))
            errors.append(brotli.error)
    return codings, tuple(errors)


_CODINGS, _ERRORS = _find_codings()

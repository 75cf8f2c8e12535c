"""Undo the content codings of a request body (RFC 9110 section 8.4), in bounded memory.

Knows bytes. Does not know which bodies are decoded, or what they contain.
"""

import zlib
from collections.abc import Sequence

from ragboost.errors import RequestError
from ragboost.requests.headers import RawHeaders

ENCODING = b"content-encoding"
_CODINGS = ("gzip", "deflate")
_MAX_CODINGS = 4  # of one body, one inside the other
_MAX_MEMBERS = 1024  # of a gzip body; each one costs time, however small it is
_WINDOW_BYTES = 64 * 1024
_GZIP, _ZLIB, _DEFLATE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class UnsupportedCodingError(RequestError):
    status = 415


class BodyTooLargeError(RequestError):
    status = 413


class _CorruptError(Exception):
    """The body is not in the coding that it claims."""


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
        UnsupportedCodingError: one is unknown.
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
            body = _decode_one(body, name, max_bytes=max_bytes) if body else body
        except (_CorruptError, zlib.error) as error:
            raise RequestError(
                f"the request body is not {name}, as its content-encoding says: "
                f"{str(error).rpartition(': ')[2]}"
            ) from None
    return body


def _decode_one(body: bytes, coding: str, *, max_bytes: int) -> bytes:
    """Decode the members of a body, which end by themselves; only gzip may have several."""
    pieces: list[bytes] = []
    view, at, left, num_members = memoryview(body), 0, max_bytes, 0
    bits, most = (_GZIP, _MAX_MEMBERS) if coding == "gzip" else (_deflate_bits(body), 1)
    while at < len(view):
        num_members += 1
        if num_members > most:
            raise _CorruptError("further bytes stand behind its end")
        member = zlib.decompressobj(bits)
        while not member.eof:
            if at >= len(view):
                raise _CorruptError("its end is missing")
            data = view[at : at + _WINDOW_BYTES]
            piece = member.decompress(data, left + 1)
            left -= len(piece)
            if left < 0:
                raise BodyTooLargeError(
                    f"the decoded request body has more than {max_bytes} bytes "
                    "(proxy.max_body_bytes)"
                )
            pieces.append(piece)
            at += len(data)
        at -= len(member.unused_data)
    return b"".join(pieces)


def _deflate_bits(body: bytes) -> int:
    """Read `deflate` with the header of zlib, as the standard says, or as some send it, without."""
    has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _ZLIB if has_header else _DEFLATE

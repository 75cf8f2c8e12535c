"""A JSON request body of which only what changes is written again.

Fields and messages that nobody replaced keep the client's bytes: unknown fields, big integers, odd
spacing. Knows JSON, does not know what the fields mean, except that `messages` is a list.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Self

import msgspec

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()


class MalformedBodyError(Exception):
    """The body is no JSON object in UTF-8. The backend shall say so, not we."""


class Payload:
    """A parsed request body.

    Attributes:
        raw: the bytes as received.
        body: the fields, decoded. Values must not be changed in place: `encode` recognises what is
            unchanged by identity.
        messages: the bytes of each message, or () where `messages` is no list.
    """

    def __init__(self, raw: bytes, fields: Mapping[str, msgspec.Raw]) -> None:
        self.raw = raw
        self._fields = fields
        self.messages = _elements(fields.get("messages"))
        self.body: dict[str, Any] = {}
        for name, value in fields.items():
            is_list = name == "messages" and self.messages
            self.body[name] = [decode(m) for m in self.messages] if is_list else decode(value)

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse a body.

        Raises:
            MalformedBodyError: not UTF-8, not JSON, or no object.
        """
        try:
            return cls(raw, _FIELDS.decode(raw))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return cls(raw, _lenient_fields(raw))

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """Write `body`: what is identical to `self.body` with its old bytes, the rest anew."""
        if len(body) == len(self.body) and all(
            name in body and value is body[name] for name, value in self.body.items()
        ):
            return self.raw
        fields: dict[str, Any] = {}
        for name, value in body.items():
            if name in self._fields and value is self.body[name]:
                fields[name] = self._fields[name]
            elif name == "messages" and self.messages:
                fields[name] = self._encode_messages(value)
            else:
                fields[name] = msgspec.Raw(encode(value))
        return _ENCODER.encode(fields)

    def _encode_messages(self, messages: list[Any]) -> list[msgspec.Raw]:
        known = {
            id(old): raw for old, raw in zip(self.body["messages"], self.messages, strict=True)
        }
        return [known.get(id(m)) or msgspec.Raw(encode(m)) for m in messages]


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Decode one value.

    Raises:
        MalformedBodyError: not UTF-8 or not JSON.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _lenient_decode(bytes(raw))


def encode(value: Any) -> bytes:
    """Encode one value; lone surrogates, which UTF-8 cannot carry, become escapes."""
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def _elements(raw: msgspec.Raw | None) -> tuple[msgspec.Raw, ...]:
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return ()
    try:
        return tuple(_ELEMENTS.decode(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return tuple(_raw(value) for value in _lenient_decode(bytes(raw)))


def _lenient_fields(raw: bytes) -> dict[str, msgspec.Raw]:
    body = _lenient_decode(raw)
    if not isinstance(body, dict):
        raise MalformedBodyError(f"the body is a JSON {type(body).__name__}, not an object")
    return {name: _raw(value) for name, value in body.items()}


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value, separators=(",", ":")).encode())


def _lenient_decode(raw: bytes) -> Any:
    # The standard library accepts lone surrogates, which engines accept too; we refuse its other
    # liberties.
    try:
        return json.loads(raw.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise MalformedBodyError(str(error)) from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is out of range")
    return number

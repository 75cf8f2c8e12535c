"""A JSON request body of which only what changes is written again.

Fields, messages and documents that nobody replaced keep the client's bytes: unknown fields, big
integers, odd spacing. Knows JSON, does not know what the fields mean.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import msgspec

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
# Lists whose elements are moved or replaced one by one.
_LISTS = ("messages", "documents", "input")


class MalformedBodyError(Exception):
    """The body is no JSON object in UTF-8. The backend shall say so, not we."""


class JsonBody:
    """A parsed request body.

    Attributes:
        raw: the bytes as received.
        body: the fields, decoded. Values must not be changed in place: `encode` recognises what is
            unchanged by identity.
        messages: the bytes of each message; empty where `messages` is no list.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        # Python's own parser takes what engines take, too: lone surrogates and NaN.
        self._is_lenient = False
        self._fields = self._split_fields()
        self._elements = {name: self._split_list(name) for name in _LISTS if name in self._fields}
        self.messages: Sequence[msgspec.Raw] = self._elements.get("messages") or ()
        self.body: dict[str, Any] = {}
        for name, field in self._fields.items():
            elements = self._elements.get(name)
            if elements is None:
                self.body[name] = self._decode(field)
            else:
                self.body[name] = [self._decode(element) for element in elements]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Parse a body.

        Raises:
            MalformedBodyError: not UTF-8, not JSON, or no object.
        """
        return cls(raw)

    def field(self, name: str) -> bytes:
        """The client's bytes of a field; empty if there is none."""
        return bytes(self._fields.get(name, b""))

    @cached_property
    def message_digests(self) -> list[bytes]:
        """A hash of each message's bytes."""
        return [hashlib.sha256(message).digest() for message in self.messages]

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """Write `body`: what is identical to `self.body` with its old bytes, the rest anew."""
        if len(body) == len(self.body) and all(
            name in body and value is body[name] for name, value in self.body.items()
        ):
            return self.raw
        fields: dict[str, Any] = {}
        for name, value in body.items():
            if name in self.body and value is self.body[name]:
                fields[name] = self._fields[name]
            elif self._elements.get(name) and isinstance(value, list):
                fields[name] = self._encode_list(name, value)
            else:
                fields[name] = self.encode_value(value)
        return _ENCODER.encode(fields)

    def encode_value(self, value: Any) -> msgspec.Raw:
        """Write one value; lone surrogates, which UTF-8 cannot carry, become escapes."""
        return value if isinstance(value, msgspec.Raw) else msgspec.Raw(self.encode_bytes(value))

    def encode_bytes(self, value: Any) -> bytes:
        """As `encode_value`, for who keeps the bytes longer than the payload."""
        if isinstance(value, msgspec.Raw):
            return bytes(value)
        return _dump(value) if self._is_lenient else _ENCODER.encode(value)

    def _encode_list(self, name: str, values: list[Any]) -> list[msgspec.Raw]:
        old = zip(self.body[name], self._elements[name] or (), strict=True)
        known = {id(value): raw for value, raw in old}
        return [known.get(id(value)) or self.encode_value(value) for value in values]

    def _split_fields(self) -> Mapping[str, msgspec.Raw]:
        try:
            return _FIELDS.decode(self.raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            body = self._decode_leniently(self.raw)
        if not isinstance(body, dict):
            raise MalformedBodyError(f"the body is a JSON {type(body).__name__}, not an object")
        return {name: msgspec.Raw(_dump(value)) for name, value in body.items()}

    def _split_list(self, name: str) -> list[msgspec.Raw] | None:
        raw = self._fields[name]
        if bytes(memoryview(raw)[:1]) != b"[":
            return None
        try:
            return _ELEMENTS.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [msgspec.Raw(_dump(value)) for value in self._decode_leniently(bytes(raw))]

    def _decode(self, raw: msgspec.Raw) -> Any:
        try:
            return _DECODER.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._decode_leniently(bytes(raw))

    def _decode_leniently(self, raw: bytes) -> Any:
        self._is_lenient = True
        try:
            return json.loads(raw.decode())
        except (ValueError, RecursionError) as error:
            raise MalformedBodyError(str(error)) from None


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

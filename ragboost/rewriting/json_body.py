"""A JSON request body in which only what changes is encoded again.

Fields, messages and documents that are not replaced keep the client's bytes: unknown fields, big
integers, odd spacing. Knows JSON, not the meaning of the fields.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
# Lists whose elements are moved or replaced one by one.
_LISTS = ("messages", "documents", "input")


class MalformedBodyError(Exception):
    """The body is not a JSON object in UTF-8. The backend reports that to the client."""


class JsonBody:
    """A parsed request body.

    Args:
        raw: the bytes as received.

    Attributes:
        raw: the bytes as received.
        fields: the decoded fields. Values must not be changed in place: `encode` recognises
            unchanged ones by identity.
        messages: the bytes of each message; empty where `messages` is not a list.

    Raises:
        MalformedBodyError: not UTF-8, not JSON, or not an object.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        # Python's own parser accepts what engines accept, too: lone surrogates and NaN.
        self._is_lenient = False
        self._raw_fields = self._split_fields()
        self._elements = {
            name: self._split_list(name) for name in _LISTS if name in self._raw_fields
        }
        self.messages: Sequence[msgspec.Raw] = self._elements.get("messages") or ()
        self.fields: dict[str, Any] = {}
        for name, field in self._raw_fields.items():
            elements = self._elements.get(name)
            if elements is None:
                self.fields[name] = self._decode(field)
            else:
                self.fields[name] = [self._decode(element) for element in elements]

    def field_bytes(self, name: str) -> bytes:
        """Return the client's bytes of a field; empty if it is absent."""
        return bytes(self._raw_fields.get(name, b""))

    @cached_property
    def message_digests(self) -> list[bytes]:
        """SHA-256 of each message's bytes."""
        return [hashlib.sha256(message).digest() for message in self.messages]

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Encode `fields`; those identical to `self.fields` keep the client's bytes."""
        if len(fields) == len(self.fields) and all(
            name in fields and value is fields[name] for name, value in self.fields.items()
        ):
            return self.raw
        encoded: dict[str, Any] = {}
        for name, value in fields.items():
            if name in self.fields and value is self.fields[name]:
                encoded[name] = self._raw_fields[name]
            elif self._elements.get(name) and isinstance(value, list):
                encoded[name] = self._encode_list(name, value)
            else:
                encoded[name] = self._encode_value(value)
        return _ENCODER.encode(encoded)

    def encode_bytes(self, value: Any) -> bytes:
        """Encode one value; lone surrogates, which UTF-8 cannot carry, become escapes."""
        if isinstance(value, msgspec.Raw):
            return bytes(value)
        return _dump(value) if self._is_lenient else _ENCODER.encode(value)

    def _encode_value(self, value: Any) -> msgspec.Raw:
        return value if isinstance(value, msgspec.Raw) else msgspec.Raw(self.encode_bytes(value))

    def _encode_list(self, name: str, values: list[Any]) -> list[msgspec.Raw]:
        old = zip(self.fields[name], self._elements[name] or (), strict=True)
        known = {id(value): raw for value, raw in old}
        return [known.get(id(value)) or self._encode_value(value) for value in values]

    def _split_fields(self) -> Mapping[str, msgspec.Raw]:
        try:
            return _FIELDS.decode(self.raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            fields = self._decode_leniently(self.raw)
        if not isinstance(fields, dict):
            raise MalformedBodyError(f"the body is a JSON {type(fields).__name__}, not an object")
        return {name: msgspec.Raw(_dump(value)) for name, value in fields.items()}

    def _split_list(self, name: str) -> list[msgspec.Raw] | None:
        raw = self._raw_fields[name]
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

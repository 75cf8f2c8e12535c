"""A JSON request body in which only what changes is encoded again.

Fields, messages and documents that are not replaced keep the client's bytes: unknown fields, big
integers, odd spacing. Knows JSON, not the meaning of the fields.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import msgspec

from ragboost.errors import json_type
from ragboost.requests.wires.body import levels_of, resent_list
from ragboost.requests.wires.cache_marks import holds_cache_mark, without_marks
from ragboost.requests.wires.normal_form import normal_message
from ragboost.requests.wires.registry import ANY

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
# Lists whose elements are moved or replaced one by one.
_MOVED_LISTS = (*ANY.messages, "documents")
# What no engine and no client needs: such bodies are not worth their memory, nor the recursion.
_MAX_DEPTH = 128
_TOO_DEEP = f"the body is nested more than {_MAX_DEPTH} levels deep"
_MAX_SMALL = 8 * 1024
_MAX_CONTAINERS = 250_000
_MAX_MESSAGES = 10_000
_MAX_DIGITS = 4_000  # of an integer; Python refuses a little more
_SPACE = re.compile(r"[ \t\n\r]*")


Link = bytes
"""Hash of a list of messages, from which the hash with one more message is made."""


class NumberLiteral(float):
    """A number that is not a plain integer, written as the client wrote it."""

    __slots__ = ("literal",)

    literal: str

    def __new__(cls, literal: str) -> "NumberLiteral":
        number = super().__new__(cls, literal)
        number.literal = literal
        return number


def _encode_number(value: Any) -> msgspec.Raw:
    if not isinstance(value, NumberLiteral):
        raise NotImplementedError(f"{type(value).__name__} in a JSON body")
    return msgspec.Raw(value.literal.encode())


_DECODER = msgspec.json.Decoder(float_hook=NumberLiteral)
# Python's own parser accepts what engines accept, too: lone surrogates and NaN.
_LENIENT = json.JSONDecoder(parse_float=NumberLiteral, parse_constant=NumberLiteral)
_ENCODER = msgspec.json.Encoder(enc_hook=_encode_number)


class MalformedBodyError(Exception):
    """The body is not a JSON object in UTF-8, or nested too deeply, or of too many parts.

    The backend reports that to the client, or can read the body.
    """


class JsonBody:
    """A parsed request body.

    Raises:
        MalformedBodyError: not UTF-8, not JSON, not an object, or beyond the limits of this module.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        if len(raw) > _MAX_CONTAINERS and _num_openers(raw) > _MAX_CONTAINERS:
            raise MalformedBodyError("the body has too many objects and lists")
        self.raw_fields = self._split_fields()  # the client's bytes, not copied
        # Values must not be changed in place: `encode` recognises unchanged ones by identity.
        self.fields: dict[str, Any] = {n: _load(field) for n, field in self.raw_fields.items()}
        if len(raw) > _MAX_SMALL or _num_openers(raw) >= _MAX_DEPTH:
            _check_depth(self.fields)
        for name in ANY.messages:
            if isinstance(self.fields.get(name), list) and len(self.fields[name]) > _MAX_MESSAGES:
                raise MalformedBodyError(f"the body has more than {_MAX_MESSAGES} {name}")
        self._elements: dict[str, list[msgspec.Raw]] = {}
        # The field of the messages that a client resends with every turn; empty if there is none.
        self.list_name = name = resent_list(self.fields)
        self.messages: Sequence[msgspec.Raw] = self.elements(name) if name else ()

    @classmethod
    def unread(cls, raw: bytes) -> Self:
        """Return a body that is no JSON object: it has no fields, and is forwarded as it came."""
        body = cls(b"{}")
        body.raw = raw
        return body

    def field_bytes(self, name: str) -> bytes:
        """Return the client's bytes of a field; empty if it is absent."""
        return bytes(self.raw_fields.get(name, b""))

    def instruction_bytes(self, name: str) -> bytes:
        """Return a field without breakpoints, encoded."""
        if not self.has_marks:
            return self.field_bytes(name)
        return self.encode_bytes(without_marks(self.fields[name]))

    @cached_property
    def has_marks(self) -> bool:
        """True if a cache breakpoint stands anywhere, which moves on with the next turn."""
        return holds_cache_mark(self.fields)

    @cached_property
    def message_digests(self) -> list[bytes]:
        """A hash of each message: of its bytes, or of what breakpoints leave as it is."""
        if self.has_marks and self.list_name:
            normal = [normal_message(m, "hosted") for m in self.fields[self.list_name]]
            return [hashlib.sha256(self.encode_bytes(message)).digest() for message in normal]
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
                encoded[name] = self.raw_fields[name]
            elif name in _MOVED_LISTS and isinstance(value, list):
                encoded[name] = self._encode_list(name, value)
            else:
                encoded[name] = self._encode_value(value)
        return self.encode_bytes(encoded)

    def encode_bytes(self, value: Any) -> bytes:
        return bytes(value) if isinstance(value, msgspec.Raw) else encode_json(value)

    def _encode_value(self, value: Any) -> msgspec.Raw:
        return value if isinstance(value, msgspec.Raw) else msgspec.Raw(self.encode_bytes(value))

    def _encode_list(self, name: str, values: list[Any]) -> list[msgspec.Raw]:
        """Encode a list; elements of the client's list keep its bytes."""
        old = self.fields.get(name)
        raws = {}
        if isinstance(old, list):
            raws = {id(v): raw for v, raw in zip(old, self.elements(name), strict=True)}
        return [raws.get(id(value)) or self._encode_value(value) for value in values]

    def _split_fields(self) -> Mapping[str, msgspec.Raw]:
        try:
            return _FIELDS.decode(self.raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            fields = _load(self.raw)
        except RecursionError:
            raise MalformedBodyError(_TOO_DEEP) from None
        if not isinstance(fields, dict):
            raise MalformedBodyError(f"the body is a JSON {json_type(fields)}, not an object")
        return dict(_split(self.raw))

    def elements(self, name: str) -> list[msgspec.Raw]:
        """Return the client's bytes of each element of a field that is a list."""
        if name not in self._elements:
            try:
                self._elements[name] = _ELEMENTS.decode(self.raw_fields[name])
            except msgspec.MsgspecError:
                pieces = _split(bytes(self.raw_fields[name]))
                self._elements[name] = [element for _, element in pieces]
        return self._elements[name]


def decode_message(message: Any) -> Any:
    """Decode a message that is encoded, as a body is decoded; return any other as it is."""
    return decode_json(message) if isinstance(message, msgspec.Raw) else message


def decode_json(raw: bytes | msgspec.Raw) -> Any:
    """Decode a JSON text as a body is decoded; return None for any other text."""
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        return None


def _load(raw: bytes | msgspec.Raw) -> Any:
    try:
        return _decode(raw)
    except RecursionError:
        raise MalformedBodyError(_TOO_DEEP) from None
    except ValueError as error:
        raise MalformedBodyError(str(error)) from None


def _decode(raw: bytes | msgspec.Raw) -> Any:
    """Accept what engines accept: lone surrogates and NaN, too. Numbers keep their spelling."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _LENIENT.decode(_text(bytes(raw)))


def encode_json(value: Any) -> bytes:
    """Encode a value, by what it holds alone; lone surrogates, which UTF-8 cannot carry, become
    escapes."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _bytes(_dump(value))


def _text(raw: bytes) -> str:
    """Decode UTF-8 as engines do, with surrogates, which UTF-8 has none of."""
    return raw.decode("utf-8", "surrogatepass")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _split(raw: bytes) -> Iterator[tuple[str, msgspec.Raw]]:
    """Yield the client's bytes of each field or element, so that a resent message is recognised
    whatever a later one contains."""
    text = _text(raw)
    at = _behind_space(text, 0)
    is_object = text[at] == "{"
    at = _behind_space(text, at + 1)
    while text[at] not in "]}":
        name = ""
        if is_object:
            name, at = _LENIENT.raw_decode(text, at)
            at = _behind_space(text, _behind_space(text, at) + 1)  # the colon
        end = _LENIENT.raw_decode(text, at)[1]
        yield name, msgspec.Raw(_bytes(text[at:end]))
        at = _behind_space(text, end)
        if text[at] == ",":
            at = _behind_space(text, at + 1)


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "an empty match is a match"
    return match.end()


def _dump(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_dump(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_dump, value)) + "]"
    if isinstance(value, msgspec.Raw):
        return _text(bytes(value))
    return value.literal if isinstance(value, NumberLiteral) else json.dumps(value)


def _num_openers(raw: bytes) -> int:
    """Count the characters `{` and `[`; several times faster than `count`."""
    return len(raw) - len(raw.translate(None, b"{["))


def _check_depth(value: Any) -> None:
    """Raise MalformedBodyError if a value is nested too deeply for code that recurses."""
    if any(depth == _MAX_DEPTH for depth, _ in enumerate(levels_of(value))):
        raise MalformedBodyError(_TOO_DEEP)


def chain_links(messages: Sequence[bytes], *, seed: bytes = b"") -> list[Link]:
    """Return the link of every prefix of a list of messages.

    The last link identifies a whole history and changes with any of its messages.

    Args:
        messages: a digest of each message's bytes.
        seed: whatever must be equal beside the messages.
    """
    links = []
    link = hashlib.sha256(seed).digest()
    for message in messages:
        link = hashlib.sha256(link + message).digest()
        links.append(link)
    return links

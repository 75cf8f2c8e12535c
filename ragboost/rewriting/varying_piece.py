"""Recognise text that differs from request to request before the documents.

No prefix cache helps behind such a piece: a date, a user's name, permissions. Knows parsed requests
and holds hashes of their texts, bounded. Not thread-safe: belongs to the event loop.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from ragboost.booster.tenants import TenantKey
from ragboost.bounded_map import BoundedMap
from ragboost.formats.groups import EVIDENCE
from ragboost.formats.messages import Messages
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.wires.body import Slot, at_path, find_slots, has_instructions, is_instruction
from ragboost.wires.registry import ANY

_SEGMENT = re.compile(r".+?(?:\n+|[.!?]\s+|$)", re.DOTALL)  # a line or a sentence
_MAX_CHARACTERS = 64 * 1024  # before the documents; longer ones are not looked at
_MAX_BEGINNINGS = 16_384
_MAX_NEW = 16  # beginnings learned from one request
_MAX_TENANTS = 1024
_MAX_FINDINGS = 256
_MAX_TAIL = 16  # equal segments between the piece and the documents
_WINDOW = 512  # requests after which older ones count half
_LEAST_VARIANTS = 8
_MOST_REPEATS = 16  # requests with the same piece, on average


class VaryingPiece(NamedTuple):
    """The piece of one request, in the text before its documents.

    text before    | head: equal | piece: differs | tail: equal | documents
    offsets        0             start            stop
    """

    num_bytes: int
    share: float  # of the requests with this head, those with another piece than the one before
    head: str  # hash of the text before the documents without the piece
    # Offsets in the text that holds the documents; None if the piece is in another text.
    span: tuple[int, int] | None
    tenant: TenantKey
    is_resent: bool = False  # its message was in an earlier request

    def sentence(self, tokens_per_byte: float) -> str:
        """Name the piece and the way out."""
        tokens = self.num_bytes * tokens_per_byte
        return varying_sentence(tokens, self.share, is_movable=self.span is not None)


def varying_sentence(tokens: float, share: float, *, is_movable: bool) -> str:
    """Return the advice on a piece of so many tokens, without a full stop."""
    move = "set ordering.move_varying" if is_movable else "move them behind the documents"
    return (
        f"{tokens:.0f} tokens differ before the documents in {share:.0%} of requests: {move}, "
        "or switch chunk reuse on"
    )


def move_piece(request: ParsedRequest, piece: VaryingPiece) -> bytes | None:
    """Return the request's body with the piece behind the documents; None if the text that holds
    these does not hold the piece, or the client asks for its documents as they are: in a resent
    history they stay as they were sent."""
    shape, found = request.shape, request.found
    if piece.span is None or not isinstance(shape, Messages) or found is None:
        return None
    is_history = piece.is_resent and (found.message or 0) < len(request.body.messages) - 1
    if not (request.is_boost_wanted or is_history):
        return None
    return request.body.encode(shape.moved_behind(request.body.fields, found, *piece.span))


class _Segment(NamedTuple):
    hashed: int
    text: int  # number of its text
    start: int
    stop: int


class _Beginning:
    """A run of leading segments, and what followed it in the latest requests."""

    __slots__ = ("differing", "last", "num_bytes", "previous", "requests", "tail", "variants")

    def __init__(self) -> None:
        self.requests = self.variants = self.differing = 0
        self.last = 0  # link of the latest continuation
        self.num_bytes = 0.0  # of the piece, moving average
        self.tail = _MAX_TAIL  # segments at the end that were equal in all requests
        self.previous: tuple[int, ...] = ()  # the last segments of the latest request

    @property
    def is_head(self) -> bool:
        """True if hardly two requests continue it alike."""
        few = _LEAST_VARIANTS
        return self.variants >= few and self.variants * _MOST_REPEATS >= self.requests

    @property
    def share(self) -> float:
        return self.differing / self.requests if self.requests else 0.0

    def follow(self, link: int, *, is_new: bool) -> None:
        self.requests += 1
        self.variants += is_new
        self.differing += link != self.last
        self.last = link
        if self.requests >= _WINDOW:
            for name in ("requests", "variants", "differing"):
                setattr(self, name, getattr(self, name) // 2)
            self.tail = _MAX_TAIL

    def learn_tail(self, hashes: Sequence[int]) -> int:
        """Return the number of last segments that no request varies, as far as is known."""
        hashes = tuple(hashes[-_MAX_TAIL:])
        equal = 0
        for old, new in zip(reversed(self.previous), reversed(hashes), strict=False):
            if old != new:
                break
            equal += 1
        if self.previous and self.previous != hashes:
            self.tail = min(self.tail, equal)
        self.previous = hashes
        return min(self.tail, equal)


class VaryingPieces:
    """Learns from each request once: a message that is sent again keeps its answer.

    Args:
        max_messages: messages with documents whose answers are kept.
    """

    def __init__(self, *, max_messages: int) -> None:
        self._answers: BoundedMap[bytes, VaryingPiece | None] = BoundedMap(max_entries=max_messages)
        self._beginnings: BoundedMap[int, _Beginning] = BoundedMap(max_entries=_MAX_BEGINNINGS)
        self._findings: BoundedMap[int, VaryingPiece] = BoundedMap(max_entries=_MAX_FINDINGS)
        # The latest texts of a tenant with their answer: most applications do not vary them.
        self._latest: BoundedMap[TenantKey, tuple[Sequence[str], VaryingPiece | None]] = BoundedMap(
            max_entries=_MAX_TENANTS
        )

    def of_team(self, team: str) -> list[VaryingPiece]:
        """Return the latest piece of each head of a team's requests, the longest first; lengths are
        moving averages."""
        found = [each for each in self._findings.values() if each.tenant.team == team]
        return sorted(found, key=lambda each: -each.num_bytes * each.share)

    def observe(self, request: ParsedRequest) -> VaryingPiece | None:
        """Return the piece before a request's documents; None if none is known."""
        before = texts_before(request)
        if before is None:
            return None
        key = _message_key(request)
        if key and key in self._answers:
            return self._answers.get(key)
        texts, has_own = before
        latest = self._latest.get(request.tenant_key)
        if latest is not None and latest[1] is None and latest[0] == texts:
            piece = None
        else:
            piece = self._learn(texts, request.tenant_key, has_own=has_own)
            self._latest.put(request.tenant_key, (texts, piece))
        if key:
            self._answers.put(key, piece and piece._replace(is_resent=True))
        return piece

    def keep_in_place(self, request: ParsedRequest) -> None:
        """Remember that the piece of a request was not moved, and never is where it is resent."""
        key = _message_key(request)
        piece = self._answers.peek(key)
        if piece is not None:
            self._answers.put(key, piece._replace(span=None))

    def _learn(
        self, texts: Sequence[str], tenant: TenantKey, *, has_own: bool
    ) -> VaryingPiece | None:
        segments = _segments(texts)
        link = hash(tenant)
        beginning = self._beginning(link)
        num_new = 0
        for depth, segment in enumerate(segments):
            link, parent_link = hash((link, segment.hashed)), link
            child = self._beginnings.get(link)
            if depth:  # a piece needs an equal head
                beginning.follow(link, is_new=child is None)
            if depth and beginning.is_head:
                self._beginning(link)
                piece = _piece(texts, segments, depth, beginning, tenant, has_own=has_own)
                if piece is not None:
                    average = round(beginning.num_bytes)
                    self._findings.put(parent_link, piece._replace(num_bytes=average))
                return piece
            if child is None:
                num_new += 1
                if num_new > _MAX_NEW:
                    break
                child = self._beginning(link)
            beginning = child
        return None

    def _beginning(self, link: int) -> _Beginning:
        found = self._beginnings.get(link)
        if found is None:
            found = _Beginning()
            self._beginnings.put(link, found)
        return found


def texts_before(request: ParsedRequest) -> tuple[list[str], bool] | None:
    """Return the texts before a request's documents, and whether the last one holds these.

    None if the request has no documents, or more than instructions precede them, or if they are
    unmarked: the first one's beginning may be taken for text before them.
    """
    found, shape = request.found, request.shape
    if found is None or not found.documents or shape is None or found.frame == EVIDENCE:
        return None
    texts: list[str] = []
    fields, size, has_own = request.body.fields, 0, False
    if not (shape.in_place or has_instructions(fields)):
        return None
    for slot in find_slots(fields):
        is_own = shape.in_place and slot.path == found.path
        if not is_own and not _is_instruction(slot, fields):
            if shape.in_message and not slot.is_leading:
                return None
            break
        if isinstance(slot.value, str):
            has_own = is_own
            texts.append(slot.value[: found.start] if is_own else slot.value)
            size += len(texts[-1])
        if is_own:
            break
    return (texts, has_own) if 0 < size <= _MAX_CHARACTERS else None


def _is_instruction(slot: Slot, fields: object) -> bool:
    if is_instruction(slot.path):
        return True
    if not slot.is_leading or len(slot.path) < 2 or not isinstance(fields, dict):
        return False
    return at_path(fields, slot.path[:2]).get("role") in ANY.instruction_roles


def _message_key(request: ParsedRequest) -> bytes:
    """Identify the text with the documents, all before it and the first message, of one user's
    conversation; empty if the documents are in none."""
    body, found = request.body, request.found
    if found is None or not found.path:
        return b""
    names = [*ANY.instructions, *([str(found.path[0])] if found.message is None else [])]
    hashed = hashlib.sha256(repr((request.tenant_key, request.session)).encode() + request.owner)
    for name in names:
        hashed.update(hashlib.sha256(body.field_bytes(name)).digest())
    for digest in body.message_digests[: (found.message or 0) + 1]:
        hashed.update(digest)
    return hashed.digest()


def _segments(texts: Sequence[str]) -> list[_Segment]:
    return [
        _Segment(hash(match[0]), number, match.start(), match.end())
        for number, text in enumerate(texts)
        for match in _SEGMENT.finditer(text)
    ]


def _piece(
    texts: Sequence[str],
    segments: Sequence[_Segment],
    depth: int,
    beginning: _Beginning,
    tenant: TenantKey,
    *,
    has_own: bool,
) -> VaryingPiece | None:
    tail = beginning.learn_tail([segment.hashed for segment in segments[depth:]])
    piece = segments[depth : len(segments) - tail]
    if not piece:
        return None
    first, last = piece[0], piece[-1]
    kept = list(texts)
    for number in range(last.text, first.text - 1, -1):
        start = first.start if number == first.text else 0
        stop = last.stop if number == last.text else len(kept[number])
        kept[number] = kept[number][:start] + kept[number][stop:]
    num_bytes = len("".join(texts).encode("utf-8", "surrogatepass"))
    num_bytes -= len("".join(kept).encode("utf-8", "surrogatepass"))
    old = beginning.num_bytes
    beginning.num_bytes = old + (num_bytes - old) / 16 if old else float(num_bytes)
    is_own = has_own and first.text == len(texts) - 1
    return VaryingPiece(
        num_bytes,
        beginning.share,
        hashlib.sha256("\0".join(kept).encode("utf-8", "surrogatepass")).hexdigest()[:16],
        (first.start, last.stop) if is_own else None,
        tenant,
    )

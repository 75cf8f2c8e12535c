"""The shape of a completion in a log of `proxy.record`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from ragboost.errors import RequestError

MAX_TOKENS = 2_000_000  # of one prompt
_Name = Annotated[str, msgspec.Meta(max_length=100)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """The shape of a completion in a log of `proxy.record`: hashes, and lengths in tokens.

    | head | documents | tail: question, history |
    """

    t_s: Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]  # of its arrival
    tenant: str
    session: str | None  # None: it named none
    head: str  # of the text before the documents; empty without documents
    head_tokens: _Tokens
    doc_ids: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]
    doc_tokens: tuple[_Tokens, ...]
    tail_tokens: _Tokens
    # What was seen of the documents, and the kind of their frame; empty in older logs.
    detection: _Name = ""
    frame: _Name = ""

    @property
    def prompt_tokens(self) -> int:
        return self.head_tokens + sum(self.doc_tokens) + self.tail_tokens

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "RecordedRequest | None":
        """Read a line; None for a line of another kind."""
        if "doc_tokens" not in row or "head_tokens" not in row:
            return None
        try:
            record = msgspec.convert(row, cls)
        except (msgspec.ValidationError, OverflowError) as error:
            raise RequestError(f"malformed in a log of proxy.record: {error}") from None
        if len(record.doc_ids) != len(record.doc_tokens):
            raise RequestError("malformed in a log of proxy.record: doc_tokens are not as doc_ids")
        return record

"""Settings of the index, ordering, de-duplication, hints, formats and sessions."""

from pathlib import Path
from typing import Literal

from pydantic import (
    AliasChoices,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from ragboost.config.section import Section

_PLACEHOLDERS = {
    "order_template": "{order}",
    "label_template": "{label}",
    "location_template": "{document}",
}


class IndexSettings(Section):
    """The context index (paper section 4)."""

    capacity_tokens: int | None = Field(
        None,
        ge=1,
        description="Size of the engine's prefix cache in tokens, used while no cache events are "
        "received. None: as the backend reports, else unbounded.",
    )
    ttl_s: float | None = Field(
        None,
        gt=0,
        description="Seconds for which the engine caches a prefix after its last use, such as 300 "
        "for hosted APIs. Ignored while cache events are exact. None: until evicted.",
    )


class TokenSettings(Section):
    """Lengths of documents. Requests use estimates until documents are counted."""

    tokenizer: Path | None = Field(
        None,
        description="A tokenizer.json, or a model that has one, its directory or name, to count "
        "documents with in the background; needs the extra tokens. None: ask the backend.",
    )
    ask_backend: bool = Field(
        True,
        description="Count each document once, in the background, with POST /tokenize of a backend "
        "that reports its prefix cache. Off: lengths are estimates.",
    )


class OrderingSettings(Section):
    """The order of documents within a request (paper section 5.1)."""

    enabled: bool = Field(
        True, description="Reorder documents to extend a cached prefix. Off: relevance order."
    )
    tail: Literal["relevance", "popularity"] = Field(
        "popularity",
        description="Order of the documents behind the cached prefix: by how often recent requests "
        "had them together if that is worth an order hint, or always by relevance.",
    )
    min_saved_tokens: int = Field(
        0,
        ge=0,
        description="Reorder only if this saves at least so many tokens. Raise it to keep the "
        "relevance order unless reordering pays off.",
    )
    keep_last: int | None = Field(
        None,
        ge=0,
        description="Most relevant documents to keep next to the question, the best one last. They "
        "are not reordered for the cache. None: 1 if the engine reuses chunks, else 0.",
    )

    def num_kept(self, *, is_reusing: bool = False) -> int:
        """Return how many documents stay next to the question.

        Args:
            is_reusing: the engine reuses chunks.
        """
        return int(is_reusing) if self.keep_last is None else self.keep_last


class DedupSettings(Section):
    """De-duplication within a request and across the turns of a session (paper section 6)."""

    enabled: bool = Field(
        True,
        description="Send a document once per request, and once per session if `hints.location` is "
        "on.",
    )
    passages: bool = Field(
        False,
        description="Replace text in tool results that repeats earlier tool results by a "
        "reference, for whole results and for passages of 512 bytes and more.",
    )


class HintSettings(Section):
    """Order hints (paper section 5.3) and location hints (section 6)."""

    order: bool = Field(
        True,
        description="Tell the model the relevance order of reordered documents; in requests that "
        "reuse chunks only if that costs at most a quarter of what the order saves.",
    )
    location: bool = Field(
        True,
        description="Refer to a document of an earlier turn instead of sending it again. Off: it "
        "is sent again.",
    )
    order_template: str = Field(
        "Documents by relevance, most relevant first: {order}",
        description="Text of the order hint; {order} becomes the labels, most relevant first.",
    )
    label_template: str = Field(
        "[Doc_{label}]",
        description="Label of a document in prompt and hints; {label} becomes its id.",
    )
    location_template: str = Field(
        "Please refer to {document} in the previous conversation.",
        description="Text of a location hint; {document} becomes the document's label.",
    )

    @field_validator("order_template", "label_template", "location_template")
    @classmethod
    def _has_placeholder(cls, template: str, info: ValidationInfo) -> str:
        placeholder = _PLACEHOLDERS[str(info.field_name)]
        if placeholder not in template:
            raise ValueError(f"must contain {placeholder}")
        return template


class FrameSettings(Section):
    """A frame of the operator's own: how documents stand in the text of messages."""

    name: str = Field(min_length=1, description="Name of the frame, for logs and errors.")
    start: str = Field(
        min_length=2,
        description="Text at the start of a document, with holes where texts differ: {n} for a "
        "number, {name} for a name, as in `[CONTEXT {n}]:`.",
    )
    end: str = Field(min_length=2, description="Text at the end of a document, with holes, too.")
    separator: str | None = Field(
        None,
        min_length=1,
        description="Text between two documents, if `start` and `end` enclose all documents "
        "together.",
    )

    @field_validator("start", "end")
    @classmethod
    def _has_text(cls, mark: str) -> str:
        if not mark.replace("{n}", "").replace("{name}", "").strip():
            raise ValueError("needs text beside its holes, such as `[CONTEXT {n}]`")
        return mark


class FormatSettings(Section):
    """The detection of documents in request bodies."""

    in_text: bool = Field(
        True, description="Detect documents in the text of messages and in tool results."
    )
    evidence: bool = Field(
        True,
        description="Learn from traffic where documents end that their text does not delimit: a "
        "block that came back whole beside others is a document. Keeps digests only, each tenant's "
        "apart.",
    )
    numbers: Literal["map", "keep"] = Field(
        "map",
        description="Documents numbered by position, such as Document 1. map: numbers stay at "
        "their places, and the proxy writes the client's numbers into the citations of the answer; "
        "keep: do not reorder these documents.",
    )
    max_documents: int = Field(
        10_000,
        ge=1,
        le=100_000,
        description="Documents of one request. More in a ragboost object or a session's turn are a "
        "400; a request with more in other fields is forwarded unchanged.",
    )
    frames: tuple[FrameSettings, ...] = Field(
        (),
        validation_alias=AliasChoices("frames", "delimiters"),
        description="Frames of your own: name, start, end, separator of each. The older name "
        "`delimiters` is read, too.",
    )


class SessionSettings(Section):
    """The memory of conversations."""

    max_sessions: int = Field(
        10_000,
        ge=1,
        description="Sessions kept; the least recently used are dropped.",
    )
    ttl_s: float = Field(
        86_400.0, gt=0, description="Seconds after its last use until a session expires."
    )
    store: Literal["memory", "sqlite", "redis"] = Field(
        "memory",
        description="Store of the chat-session API; sqlite survives restarts, redis is shared by "
        "proxies on several machines and needs the extra redis.",
    )
    path: Path = Field(
        Path("ragboost-sessions.db"), description="SQLite file, if `session.store` is sqlite."
    )
    url: SecretStr | None = Field(
        None,
        description="Redis or Valkey server, if `session.store` is redis: "
        "redis://[[USER]:PASSWORD@]HOST:PORT[/DATABASE], rediss:// for TLS.",
    )
    prefix: str = Field(
        "ragboost",
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="Beginning of all keys and channels in Redis; another one for each deployment "
        "that uses the same server.",
    )

"""Settings of the index, ordering, de-duplication, hints, formats and sessions."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ragboost.config.section import Section

_PLACEHOLDERS = {
    "order_template": "{order}",
    "label_template": "{label}",
    "location_template": "{document}",
}


class IndexSettings(Section):
    """The context index (paper section 4)."""

    capacity_tokens: int | None = Field(
        None, ge=1, description="Tokens that the engine's prefix cache holds; None: unbounded."
    )
    ttl_s: float | None = Field(
        None,
        gt=0,
        description="Seconds after its last use that a prefix stays cached, such as 300 for hosted "
        "APIs; None: as long as there is room. Does not count while cache events are exact.",
    )
    max_nodes: int = Field(
        200_000, ge=1, description="Nodes kept; the least recently used go first."
    )
    max_visits: int = Field(32, ge=1, description="Nodes that one search may go on from.")


class TokenSettings(Section):
    """Lengths of documents; no request waits for them."""

    tokenizer: Path | None = Field(
        None,
        description="A tokenizer.json, or a model's directory that has one, to count documents "
        "with in the background; needs the extra tokens. None: ask the backend.",
    )
    ask_backend: bool = Field(
        True,
        description="Ask a backend that tells of its prefix cache for the tokens of each document "
        "(POST /tokenize), once and in the background; off: lengths are estimates.",
    )
    max_documents: int = Field(
        200_000, ge=1, description="Lengths kept per model; the least recently used go first."
    )


class OrderingSettings(Section):
    """The order of documents inside a request (paper section 5.1)."""

    enabled: bool = Field(True, description="Reorder documents to extend a cached prefix.")
    tail: Literal["relevance", "popularity"] = Field(
        "relevance", description="Order of the documents behind the cached prefix."
    )
    min_saved_tokens: int = Field(
        0, ge=0, description="Reorder only when at least this many tokens are saved."
    )
    keep_last: int = Field(
        0,
        ge=0,
        description="Keep this many of the most relevant documents next to the question.",
    )
    linkage: Literal["savings", "distance"] = Field(
        "savings",
        description="Batch clustering: most saved tokens, or the paper's distance (Eq. 1).",
    )
    alpha: float = Field(
        0.001, ge=0.0, le=0.01, description="Weight of positions in the paper's distance (Eq. 1)."
    )


class DedupSettings(Section):
    """De-duplication across the turns of a session and inside a request (paper section 6)."""

    enabled: bool = Field(
        True,
        description="Send a document once per request, and once per session where location hints "
        "are on.",
    )
    passages: bool = Field(
        False,
        description="Replace what a chat's tool result repeats of earlier ones, whole or in "
        "passages, by a reference.",
    )
    passage_min_bytes: int = Field(
        512, ge=64, description="Shorter passages are not cut, and shorter repetitions are kept."
    )
    passage_avg_bytes: int = Field(1024, ge=64, description="Mean length of a passage.")
    passage_max_bytes: int = Field(4096, ge=64, description="Longer passages are cut.")

    @model_validator(mode="after")
    def _are_passage_sizes_ordered(self) -> Self:
        if not self.passage_min_bytes <= self.passage_avg_bytes <= self.passage_max_bytes:
            raise ValueError(
                "passage_min_bytes, passage_avg_bytes and passage_max_bytes must not decrease"
            )
        return self


class HintSettings(Section):
    """Order hints (paper section 5.3) and location hints (section 6)."""

    order: bool = Field(
        True, description="Tell the model the relevance order of reordered documents."
    )
    location: bool = Field(
        True,
        description="Tell the model where a document of an earlier turn stands; off: it is sent "
        "again.",
    )
    position: Literal["before_question", "after_question"] = Field(
        "before_question", description="Where the hints stand."
    )
    order_template: str = Field(
        "Please read the context in the following priority order: {order} and answer the question.",
        description="Order hint; {order} becomes the labels, most relevant first.",
    )
    label_template: str = Field(
        "[Doc_{label}]",
        description="A document's label in prompt and hints; {label} becomes its id.",
    )
    location_template: str = Field(
        "Please refer to {document} in the previous conversation.",
        description="Location hint; {document} becomes the document's label.",
    )

    @field_validator("order_template", "label_template", "location_template")
    @classmethod
    def _has_placeholder(cls, template: str, info: ValidationInfo) -> str:
        placeholder = _PLACEHOLDERS[str(info.field_name)]
        if placeholder not in template:
            raise ValueError(f"must contain {placeholder}")
        return template


class Delimiters(Section):
    """Marks around a caller's documents inside the text of messages."""

    name: str = Field(min_length=1, description="Name of the shape, for messages.")
    start: str = Field(min_length=2, description="Text with which a document begins.")
    end: str = Field(min_length=2, description="Text with which a document ends.")
    separator: str | None = Field(
        None,
        min_length=1,
        description="Where given, start and end stand around all documents, and this between two.",
    )


class FormatSettings(Section):
    """How documents are found in request bodies."""

    in_text: bool = Field(
        True, description="Look for documents in the text of messages and in tool results."
    )
    numbers: Literal["label", "keep"] = Field(
        "label",
        description="Documents that are numbered by position, such as Document 1: label puts names "
        "of their own in place of the numbers and tells the model which is which, keep leaves them "
        "where they are.",
    )
    delimiters: tuple[Delimiters, ...] = Field(
        (), description="More marks to find documents by: name, start, end, separator."
    )


class SessionSettings(Section):
    """What is remembered of conversations."""

    max_sessions: int = Field(
        10_000, ge=1, description="Sessions kept; the least recently used go first."
    )
    ttl_s: float = Field(
        86_400.0, gt=0, description="Seconds after which an unused session is forgotten."
    )
    max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024,
        description="Bytes of sent messages that the proxy keeps to send them again unchanged; as "
        "many for conversations without a session id, and for chat sessions in memory.",
    )
    max_documents: int = Field(
        10_000,
        ge=1,
        description="Documents remembered per session; beyond it the oldest turns are forgotten, "
        "and their documents sent again.",
    )
    stateless: bool = Field(
        True,
        description="Recognise conversations without a session id by an exact chain over their "
        "messages; kept in the proxy's memory.",
    )
    store: Literal["memory", "sqlite"] = Field(
        "memory", description="Where the sessions of the chat-session API are kept."
    )
    path: Path = Field(
        Path("ragboost-sessions.db"), description="The SQLite file, for session.store = sqlite."
    )

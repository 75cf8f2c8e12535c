"""Explain what RAGBoost sees in one request and what it would send, without sending it.

The body is boosted by a Booster of its own, as if an earlier request had brought the same documents
in reverse order: nothing that later requests depend on changes. Does not know what the engine has
cached, nor a conversation's earlier turns.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from ragboost.booster import Booster
from ragboost.booster.context import Context
from ragboost.booster.tokens import (
    DEFAULT_TOKENS_PER_BYTE,
    TokenCounter,
    make_offline_counter,
    num_bytes,
)
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.requests.formats import Format, LeftAloneError, make_formats
from ragboost.requests.formats.detection import ADVICE
from ragboost.requests.headers import RawHeaders, printable
from ragboost.requests.json_body import JsonBody, MalformedBodyError
from ragboost.requests.parsed_request import (
    NO_DOCUMENTS,
    NUMBERED,
    Bypass,
    ParsedRequest,
    parse_request,
)
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.wires.body import find_slots
from ragboost.types import Document

_NUM_WORDS = 12
_MAX_BEGINNING = 400  # characters in which the first words are sought
_MAX_BEGINS = 80  # characters of them
_AS_GIVEN = Bypass("option")
_ODD = re.compile(r"[^\t\n\r -~]")

Count = Callable[[str], int]


@dataclass(frozen=True)
class SeenDocument:
    begins: str  # its first words, printable
    tokens: int


@dataclass(frozen=True)
class Explanation:
    detection: str  # `found`, or why there is nothing to boost
    frame: str  # the marks around the documents, in the client's words; empty if none
    documents: Sequence[SeenDocument]  # those that may be ordered, as the client ordered them
    order: Sequence[int]  # the documents sent, by their places in the client's order, from 1
    note: str  # what the model would be told about documents that were moved or left out
    tokens_before: int  # of the texts that may hold documents
    tokens_after: int
    is_counted: bool  # by a tokenizer; else estimated
    why: str  # nothing is boosted; empty if something is
    advice: str  # the smallest change that helps; empty if there is none
    sent: bytes  # the body for the backend; empty if the request would be refused

    def as_json(self) -> str:
        """Return an object in ASCII, without control characters whatever the client's text has."""
        text = json.dumps({**asdict(self), "sent": None})
        if not self.sent:
            return text
        sent = _ODD.sub(_escaped, self.sent.decode())
        return f"{text.removesuffix('null}')}{sent}}}"


class Explainer:
    """Explains requests with the settings of a proxy, and with what its traffic has taught it.

    Args:
        formats: of a proxy, with its evidence; None: those of the settings.
        tokens_per_byte: by the name of a model, for estimates.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        formats: tuple[Format, ...] | None = None,
        tokens_per_byte: Callable[[str], float] = lambda _: DEFAULT_TOKENS_PER_BYTE,
    ) -> None:
        index = settings.index.model_copy(update={"capacity_tokens": None})
        self._settings = settings.model_copy(update={"index": index})
        self._formats = make_formats(settings) if formats is None else formats
        self._tokens_per_byte = tokens_per_byte

    def explain(self, raw: bytes, headers: RawHeaders = (), *, team: str = "") -> Explanation:
        """Explain a team's request, also one that would be refused."""
        try:
            request = parse_request(raw, headers, formats=self._formats, team=team, learns=False)
            return self._explain(request)
        except MalformedBodyError as error:
            return _unread("malformed_body", str(error))
        except RequestError as error:
            return _unread("refused", f"the response would have status {error.status}: {error}")

    def _explain(self, request: ParsedRequest) -> Explanation:
        count, detection = self._count(request.tenant_key.model), request.detection
        template = self._settings.hints.label_template
        plain = Rewriting(request, None, label_template=template).render(_AS_GIVEN)
        result = self._boost(Rewriting(request, None, label_template=template), request, count)
        sent = request.body.encode(result.fields)
        tokens_before = _num_tokens(request.body.encode(plain.fields), count)
        outcome = NUMBERED.reason if result.bypass == NUMBERED else detection.name
        return Explanation(
            detection=outcome,
            frame=printable(_frame(request)),
            documents=[_seen(document, count) for document in _documents(request)],
            order=_order(result.context),
            note=_note(request, result.context),
            tokens_before=tokens_before,
            tokens_after=_num_tokens(sent, count),
            is_counted=self._tokenizer is not None,
            why=self._why(request, result, num_tokens=tokens_before),
            advice=ADVICE.get(outcome, ""),
            sent=sent,
        )

    def _boost(self, result: Rewriting, request: ParsedRequest, count: Count) -> Rewriting:
        """Boost a request behind one that has brought its documents in reverse order."""
        booster, documents = Booster(self._settings, count_tokens=count), _documents(request)
        if documents:
            booster.record(documents[::-1], prompt_prefix=request.prompt_prefix)
        return result.boost(booster)

    @cached_property
    def _tokenizer(self) -> TokenCounter | None:
        settings = self._settings.tokens
        return make_offline_counter(settings) if settings.tokenizer is not None else None

    def _count(self, model: str) -> Count:
        if self._tokenizer is not None:
            return self._tokenizer.count
        ratio = self._tokens_per_byte(model)
        return lambda text: math.ceil(num_bytes(text) * ratio)

    def _why(self, request: ParsedRequest, result: Rewriting, *, num_tokens: int) -> str:
        bypass = result.bypass
        if bypass is None:
            return ""
        if bypass.error is not None:
            return str(bypass.error)
        if bypass == NUMBERED:
            return "a text names documents by number, or the answer's numbers cannot be mapped"
        if bypass.reason != NO_DOCUMENTS.reason:
            return "options.boost is false" if bypass.reason == "option" else bypass.reason
        if not self._settings.formats.in_text:
            return "formats.in_text is off: texts are not searched"
        if not find_slots(request.body.fields):
            return "no text in `messages`, `input`, `prompt` or elsewhere may hold documents"
        return f"no list of two or more documents in the text, about {num_tokens:,} tokens"


def _unread(detection: str, why: str) -> Explanation:
    return Explanation(detection, "", (), (), "", 0, 0, False, why, ADVICE[detection], b"")


def _documents(request: ParsedRequest) -> Sequence[Document]:
    return request.found.documents if request.found is not None else ()


def _frame(request: ParsedRequest) -> str:
    """Return the frame with the client's words, where the text has one."""
    if request.found is not None and request.found.frame:
        return request.found.frame
    error = request.bypass.error if request.bypass is not None else None
    return error.frame if isinstance(error, LeftAloneError) else request.detection.frame


def _seen(document: Document, count: Count) -> SeenDocument:
    text = f"{document.title} {document.text}" if document.title else document.text
    words = text[:_MAX_BEGINNING].split()
    begins = " ".join(words[:_NUM_WORDS])
    shown = begins if len(begins) <= _MAX_BEGINS else begins[:_MAX_BEGINS] + "..."
    return SeenDocument(printable(shown), count(text))


def _order(context: Context | None) -> Sequence[int]:
    if context is None:
        return ()
    places = {at: place for place, at in reversed([*enumerate(context.positions, 1)])}
    return [places[at] for at in range(len(context.documents))]


def _note(request: ParsedRequest, context: Context | None) -> str:
    if context is None or request.shape is None or request.found is None:
        return ""
    return request.shape.note(request.body.fields, request.found, context)


def _num_tokens(raw: bytes, count: Count) -> int:
    """Count the tokens of the texts that may hold documents, and of documents beside them."""
    fields = JsonBody(raw).fields
    texts = [slot.value for slot in find_slots(fields) if isinstance(slot.value, str)]
    for holder in (fields, fields.get("chat_template_kwargs")):
        beside = holder.get("documents") if isinstance(holder, dict) else None
        texts += map(str, beside if isinstance(beside, list) else ())
    return sum(map(count, texts))


def _escaped(odd: re.Match[str]) -> str:
    return json.dumps(odd[0])[1:-1]

"""Score an answer that was given over reused chunks as the exact model would: one pass over the
tokens of prompt and answer, no decoding. Does not know engines: they say how they score tokens."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field

from ragboost.chunk_cache.core.request import FIELD
from ragboost.chunk_cache.fields import Fields, Text, read_fields
from ragboost.chunk_cache.http.asgi import (
    App,
    Receive,
    Scope,
    Send,
    call_route,
    read_body,
    read_json,
    refuse,
    respond,
)
from ragboost.errors import RequestError

CHECK = "/chunk_reuse/check"
Count = Annotated[int, Field(ge=1)]
TokenizeRequest = Callable[[dict[str, Any]], Awaitable[Sequence[int] | None]]
TokenizeText = Callable[[str], Awaitable[Sequence[int] | None]]


class TokenScores(NamedTuple):
    """The exact model's scores of an answer; the answer is its greedy one if no token is worse than
    the best, and it ends where the model ends it."""

    logprobs: Sequence[float]  # of each token of the answer
    best: Sequence[float]  # of the most likely token in its place
    is_end: bool  # the most likely token behind the answer ends it
    computed_tokens: int  # not read from the prefix cache


class AnswerFields(Fields):
    """A request that was answered, and its answer."""

    request: dict[str, Any]
    answer: Text
    prompt_tokens: Count  # as the response said
    completion_tokens: Count

    @property
    def exact_request(self) -> dict[str, Any]:
        return {name: value for name, value in self.request.items() if name != FIELD}


class ScoredTokens(NamedTuple):
    request: dict[str, Any]  # without our field: nothing is reused
    tokens: list[int]  # of prompt and answer
    num_scored: int  # the last ones, which are the answer's


class Scorer(Protocol):
    """Words of an engine for scoring tokens."""

    def request(self, asked: ScoredTokens) -> tuple[str, Mapping[str, Any]]:
        """Return the path and body of the request that scores tokens."""

    def read(self, answer: Mapping[str, Any], asked: ScoredTokens) -> TokenScores:
        """Read the scores from its answer; a `LookupError`, `TypeError` or `ValueError`: none."""


async def read_answer(
    body: Any, tokenize_request: TokenizeRequest, tokenize_text: TokenizeText
) -> ScoredTokens:
    """Return the tokens of a body with `AnswerFields`. Raises `RequestError`, with status 409 if
    the texts have other tokens than the engine computed, as with images."""
    fields = read_fields(AnswerFields, body)
    request = fields.exact_request
    prompt, answer = request.get("prompt"), await tokenize_text(fields.answer)
    if not isinstance(prompt, list):
        prompt = await tokenize_request(request)
    # The token that ended the answer has no text.
    is_same = answer and fields.completion_tokens - len(answer) in (0, 1)
    if not (prompt and answer and is_same and len(prompt) == fields.prompt_tokens):
        error = RequestError("the texts of prompt and answer have other tokens than were computed")
        error.status = 409
        raise error
    return ScoredTokens(request, [*prompt, *answer], len(answer))


async def answer_check(
    app: App,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    scorer: Scorer,
    tokenize: tuple[TokenizeRequest, TokenizeText],
) -> None:
    """Answer a check in an API server, whose own `app` computes requests exactly."""
    body = await read_body(receive)
    try:
        asked = await read_answer(read_json(body.data), *tokenize)
        answer = await call_route(app, scope, *scorer.request(asked))
        scores = scorer.read(answer or {}, asked)
    except RequestError as error:
        await refuse(send, error)
    except (LookupError, TypeError, ValueError) as error:
        await respond(send, 502, {"error": f"the engine did not score the answer: {error!r}"})
    else:
        await respond(send, 200, scores._asdict())

"""Find the text that differs before the documents in a log, as the proxy finds it live."""

from ragboost.bounded_map import BoundedMap
from ragboost.config import Settings
from ragboost.errors import RagBoostError
from ragboost.formats import Detection, make_formats
from ragboost.rewriting.json_body import MalformedBodyError
from ragboost.rewriting.parsed_request import parse_request
from ragboost.rewriting.recorded_request import RecordedRequest
from ragboost.rewriting.varying_piece import VaryingPieces, varying_sentence
from ragboost.tokens import DEFAULT_TOKENS_PER_BYTE

_MAX_MESSAGES = 10_000
_MAX_HEADS = 1000


class LoggedVarying:
    """Lengths and heads of the requests so far, bounded."""

    def __init__(self) -> None:
        self._formats = make_formats(Settings())
        self._pieces = VaryingPieces(max_messages=_MAX_MESSAGES)
        # Of recorded requests by tenant and head: their number, those with a piece, its tokens.
        self._recorded: BoundedMap[tuple[str, str], tuple[int, int, int]] = BoundedMap(
            max_entries=_MAX_HEADS
        )

    def add_body(self, raw: bytes) -> Detection:
        """Add a request, and return what is seen of its documents."""
        try:
            request = parse_request(raw, (), formats=self._formats)
            self._pieces.observe(request)
            return request.detection
        except MalformedBodyError:  # the proxy would forward it as it is
            return Detection("malformed_body")
        except RagBoostError:
            return Detection("refused")

    def add_recorded(self, request: RecordedRequest) -> int:
        """Add a line of `proxy.record`; return its prompt tokens."""
        key = request.tenant, request.head
        requests, varying, tokens = self._recorded.get(key) or (0, 0, 0)
        has_piece = request.varying_tokens > 0
        counts = requests + 1, varying + has_piece, tokens + request.varying_tokens
        self._recorded.put(key, counts)
        return (
            request.head_tokens
            + request.varying_tokens
            + sum(request.doc_tokens)
            + request.tail_tokens
        )

    def advice(self) -> list[str]:
        found = [finding.sentence(DEFAULT_TOKENS_PER_BYTE) for finding in self._pieces.of_team("")]
        return found + [
            varying_sentence(tokens / varying, varying / requests, is_movable=True)
            for requests, varying, tokens in self._recorded.values()
            if varying
        ]

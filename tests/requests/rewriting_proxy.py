"""The part of the proxy that recognises conversations and rewrites them, without servers."""

import json
from typing import Any

from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.requests.formats import make_formats
from ragboost.requests.history import History
from ragboost.requests.parsed_request import parse_request
from ragboost.requests.rewriter import Rewriting


class RewritingProxy:
    def __init__(self) -> None:
        settings = Settings()
        self._formats = make_formats(settings)
        self._booster = Booster(settings)
        self._history = History.of(settings)
        self._template = settings.hints.label_template

    def send(self, body: dict[str, Any], *, session: str = "", key: str = "") -> list[str]:
        """Return the messages that the engine gets."""
        raw = json.dumps(body).encode()
        headers = [(b"authorization", key.encode())]
        headers += [(b"x-session-id", session.encode())] if session else []
        request = parse_request(raw, headers, formats=self._formats)
        if not request.is_followed:
            return [json.dumps(message) for message in body["messages"]]
        result = Rewriting(
            request, self._history.known(request.chain), label_template=self._template
        )
        result.boost(self._booster)
        self._history.add(result.delta)
        messages = json.loads(request.body.encode(result.fields))["messages"]
        return [json.dumps(message) for message in messages]

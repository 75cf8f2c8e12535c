"""The part of the proxy that recognises conversations and rewrites them, without servers."""

import json
from typing import Any

from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.formats import make_formats
from ragboost.rewriting.parsed_request import parse_request
from ragboost.rewriting.recognition import Histories
from ragboost.rewriting.rewriter import Rewriting
from ragboost.rewriting.sent_history import Conversations


class RewritingProxy:
    def __init__(self) -> None:
        settings = Settings()
        self._formats = make_formats(settings)
        self._booster = Booster(settings)
        self._histories = Histories(settings.session)
        self._conversations = Conversations(settings.session)
        self._template = settings.hints.label_template

    def send(self, body: dict[str, Any], *, session: str = "", key: str = "") -> list[str]:
        """Return the messages that the engine gets."""
        raw = json.dumps(body).encode()
        headers = [(b"authorization", key.encode())]
        headers += [(b"x-session-id", session.encode())] if session else []
        request = parse_request(raw, headers, formats=self._formats, recognises=True)
        if request.session is not None:
            conversation = self._conversations.get(request.session)
        elif request.links:
            conversation = self._histories.match(request)
        else:
            self._histories.add_unchanged(request)
            return [json.dumps(message) for message in body["messages"]]
        result = Rewriting(request, conversation, label_template=self._template)
        result.boost(self._booster)
        if request.session is not None:
            self._conversations.add(conversation, result.delta)
        else:
            self._histories.add(request, conversation, result.delta)
        messages = json.loads(request.body.encode(result.fields))["messages"]
        return [json.dumps(message) for message in messages]

"""Rewrite bodies by their format, in an order chosen by the test or by a Booster."""

import json
from collections.abc import Sequence
from typing import Any

from ragboost.booster.booster import Booster
from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.requests.formats import FoundDocuments, LeftAloneError, find_format, make_formats
from ragboost.requests.json_body import JsonBody
from ragboost.requests.prompt_prefix import prompt_prefix

SETTINGS = Settings()


def user(text: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def text_of(body: dict[str, Any], at: int = -1) -> Any:
    return body["messages"][at]["content"]


def find(body: dict[str, Any], settings: Settings = SETTINGS) -> FoundDocuments | None:
    try:
        hit = find_format(make_formats(settings), body)
    except LeftAloneError:
        return None
    return hit[1] if hit else None


def context_of(found: FoundDocuments, order: Sequence[int]) -> Context:
    documents = tuple(found.documents[i] for i in order)
    keys = [document.key for document in documents]
    positions = tuple(
        keys.index(document.key) if document.key in keys else -1 for document in found.documents
    )
    return Context(found.query, documents, found.documents, positions, labels=tuple(keys))


def reorder(
    body: dict[str, Any], order: Sequence[int] | None = None, settings: Settings = SETTINGS
) -> dict[str, Any]:
    """Rewrite with this order of the leading documents; None keeps their order."""
    hit = find_format(make_formats(settings), body)
    assert hit is not None, "no documents found"
    shape, found = hit
    if order is None:
        order = range(len(found.documents))
    return shape.replace(body, found, context_of(found, order))


def boost(booster: Booster, body: dict[str, Any]) -> dict[str, Any]:
    """Rewrite as the proxy does without a session."""
    try:
        hit = find_format(make_formats(booster.settings), body)
    except LeftAloneError:
        hit = None
    if hit is None:
        return body
    shape, found = hit
    if not found.documents:
        return shape.replace(body, found, context_of(found, ()))
    text_before = prompt_prefix(JsonBody(json.dumps(body).encode()), shape, found)
    context = booster.boost(found.query, found.documents, prompt_prefix=text_before)
    return shape.replace(body, found, context)

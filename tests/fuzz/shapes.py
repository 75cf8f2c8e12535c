"""The ways in which clients hand over documents; one function per wire shape.

Written from the documentation of the shapes, not from the code that reads them.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.corpus import Doc

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"

Message = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """One turn with its documents.

    Attributes:
        messages: new messages of the turn.
        fields: fields of the body beside the messages.
        front: messages before all others, in the first turn of a conversation.
    """

    messages: Sequence[Message]
    fields: Mapping[str, Any] = field(default_factory=dict)
    front: Sequence[Message] = ()


@dataclass(frozen=True)
class Shape:
    """One wire shape.

    Attributes:
        name: for reports.
        write: writes documents and a question.
        path: the endpoint.
        is_inside: the documents are part of messages, which a client resends with each turn.
        is_ours: the `ragboost` object: documents are rendered into the question's message.
    """

    name: str
    write: Callable[[Sequence[Doc], str], Written]
    path: str = CHAT
    is_inside: bool = True
    is_ours: bool = False


def question_alone(_documents: Sequence[Doc], question: str) -> Written:
    """Write a question without documents."""
    return Written([_user(question)])


def _user(content: Any) -> Message:
    return {"role": "user", "content": content}


def _as_object(document: Doc) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": document.text}
    if document.id is not None:
        fields["id"] = document.id
    if document.title is not None:
        fields["title"] = document.title
    return fields


def _ragboost(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(question)], {"ragboost": {"documents": [*map(_as_object, documents)]}})


def _ragboost_parts(documents: Sequence[Doc], question: str) -> Written:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [picture, {"type": "text", "text": question}]
    return Written([_user(parts)], {"ragboost": {"documents": [*map(_as_object, documents)]}})


def _field(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(question)], {"documents": [*map(_as_object, documents)]})


def _template(documents: Sequence[Doc], question: str) -> Written:
    fields = {"documents": [*map(_as_object, documents)], "enable_thinking": False}
    return Written([_user(question)], {"chat_template_kwargs": fields})


def _tags(documents: Sequence[Doc], *, tag: str = "document") -> str:
    names = [f' id="{d.id}"' if d.id is not None else "" for d in documents]
    return "\n".join(
        f"<{tag}{name}>{d.text}</{tag}>" for name, d in zip(names, documents, strict=True)
    )


def _xml(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(f"Read this.\n{_tags(documents)}\n\n{question}")])


def _xml_sources(documents: Sequence[Doc], question: str) -> Written:
    blocks = "\n".join(
        f'<document index="{i}">\n<source>{d.title}</source>\n<document_content>\n{d.text}\n'
        "</document_content>\n</document>"
        for i, d in enumerate(documents, 1)
    )
    return Written([_user(f"<documents>\n{blocks}\n</documents>\n\n{question}")])


def _xml_parts(documents: Sequence[Doc], question: str) -> Written:
    parts = [
        {"type": "text", "text": _tags(documents, tag="passage")},
        {"type": "text", "text": question},
    ]
    return Written([_user(parts)])


def _system(documents: Sequence[Doc], question: str) -> Written:
    text = f"Answer from these documents.\n{_tags(documents, tag='doc')}\nBe brief."
    return Written([_user(question)], front=[{"role": "system", "content": text}])


def _numbered(documents: Sequence[Doc], question: str) -> Written:
    blocks = "\n\n".join(f"Document {i}: {d.text}" for i, d in enumerate(documents, 1))
    return Written([_user(f"{blocks}\n\nQuestion: {question}")])


def _labelled(documents: Sequence[Doc], question: str) -> Written:
    blocks = "\n".join(f"[Doc_{i}] {d.text}" for i, d in enumerate(documents, 1))
    return Written([_user(f"{blocks}\n\nQuestion: {question}")])


def _wrapped(documents: Sequence[Doc], question: str) -> Written:
    blocks = "\n".join(f"[{i}] {d.text}" for i, d in enumerate(documents, 1))
    return Written([_user(f"<context>\n{blocks}\n</context>\n\n{question}")])


def _llama_index(documents: Sequence[Doc], question: str) -> Written:
    nodes = "\n\n".join(f"file_path: docs/{d.id}.txt\n\n{d.text}" for d in documents)
    line = "-" * 21
    text = (
        f"Context information is below.\n{line}\n{nodes}\n{line}\nGiven the context information "
        f"and not prior knowledge, answer the query.\nQuery: {question}\nAnswer: "
    )
    return Written([_user(text)])


def _called(question: str, result: str) -> Written:
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    return Written(
        [
            _user(question),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
    )


def _json_result(documents: Sequence[Doc], question: str) -> Written:
    results = [{"text": d.text, "score": 0.5} for d in documents]
    return _called(question, json.dumps({"results": results}))


def _pairs_result(documents: Sequence[Doc], question: str) -> Written:
    pairs = [f"Source: {{'f': {i}}}\nContent: {d.text}" for i, d in enumerate(documents)]
    return _called(question, "\n\n".join(pairs))


def _xml_result(documents: Sequence[Doc], question: str) -> Written:
    return _called(question, _tags(documents, tag="search_result"))


def _blocks(documents: Sequence[Doc], question: str) -> Written:
    blocks: list[Any] = [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": d.text},
            "title": d.title or "untitled",
        }
        for d in documents
    ]
    return Written([_user([*blocks, {"type": "text", "text": question}])], {"max_tokens": 64})


def _results_blocks(documents: Sequence[Doc], question: str) -> Written:
    blocks: list[Any] = [
        {
            "type": "search_result",
            "source": "archive",
            "title": d.title or "untitled",
            "content": [{"type": "text", "text": d.text}],
        }
        for d in documents
    ]
    return Written([_user([*blocks, {"type": "text", "text": question}])], {"max_tokens": 64})


def _anthropic_xml(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(f"{_tags(documents)}\n\n{question}")], {"max_tokens": 64})


def _prompt_xml(documents: Sequence[Doc], question: str) -> Written:
    return Written([], {"prompt": f"{_tags(documents)}\n\n{question}"})


def _prompt_object(documents: Sequence[Doc], question: str) -> Written:
    ours = {"documents": [*map(_as_object, documents)]}
    return Written([], {"prompt": question, "ragboost": ours})


def _instructions(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(question)], {"instructions": f"Use these.\n{_tags(documents)}"})


def _input_xml(documents: Sequence[Doc], question: str) -> Written:
    return Written([_user(f"{_tags(documents)}\n\n{question}")])


def _file_search(documents: Sequence[Doc], question: str) -> Written:
    results = [{"file_id": f"f{i}", "text": d.text} for i, d in enumerate(documents)]
    call = {"type": "file_search_call", "id": "fs_1", "queries": [question], "results": results}
    return Written([_user(question), call])


OURS = Shape("ragboost", _ragboost, is_inside=False, is_ours=True)
CHAT_SHAPES = (
    OURS,
    OURS,
    OURS,
    Shape("ragboost_parts", _ragboost_parts, is_inside=False, is_ours=True),
    Shape("documents", _field, is_inside=False),
    Shape("template", _template, is_inside=False),
    Shape("xml", _xml),
    Shape("xml_sources", _xml_sources),
    Shape("xml_parts", _xml_parts),
    Shape("system", _system),
    Shape("numbered", _numbered),
    Shape("labelled", _labelled),
    Shape("wrapped", _wrapped),
    Shape("llama_index", _llama_index),
    Shape("json_result", _json_result),
    Shape("pairs_result", _pairs_result),
    Shape("xml_result", _xml_result),
)
OTHER_SHAPES = (
    Shape("blocks", _blocks, MESSAGES),
    Shape("search_results", _results_blocks, MESSAGES),
    Shape("anthropic_xml", _anthropic_xml, MESSAGES),
    Shape("prompt_xml", _prompt_xml, COMPLETIONS, is_inside=False),
    Shape("prompt_object", _prompt_object, COMPLETIONS, is_inside=False, is_ours=True),
    Shape("instructions", _instructions, RESPONSES, is_inside=False),
    Shape("input_xml", _input_xml, RESPONSES),
    Shape("file_search", _file_search, RESPONSES),
)


def draw_shape(rng: random.Random) -> Shape:
    """Return a random shape; chat completions are the most frequent."""
    return rng.choice(CHAT_SHAPES if rng.random() < 0.75 else OTHER_SHAPES)

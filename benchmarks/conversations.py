"""Replay conversations through the proxy: does each request extend the last one, what is saved?

Runs `python -m benchmarks.conversations --data PATH --json` on a folder of MT-RAG (questions with
retrieved documents) or of agents' traces (tool results). The engine is the tests' FakeEngine, which
has an exact prefix cache and counts words and signs as tokens; conversations go on in turn. The
answers are the data's own, no model is asked. Exits with 1 if a check fails.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from ragboost.config import Settings
from ragboost.context import render_document
from ragboost.proxy.app import create_app
from ragboost.serving import serve_in_thread
from ragboost.types import as_document
from tests.fakes import FakeEngine, Received

URL = "/v1/chat/completions"
Message = dict[str, Any]


@dataclass
class Chat:
    """One conversation: for each request its new messages, its documents, and the answer.

    Attributes:
        id: in the data.
        steps: new messages, documents (as the proxy takes them) and the answer's message.
    """

    id: str
    steps: list[tuple[list[Message], list[Message], Message]] = field(default_factory=list)


class Client:
    """An application in one conversation.

    Attributes:
        history: its messages.
        last: what the engine got for the last request, decoded.
        is_extending: every request began with the last one.
        is_complete: every document given stood once in its request.
    """

    def __init__(self, chat: Chat) -> None:
        self.steps = chat.steps
        self.history: list[Message] = []
        self.last: list[Message] = []
        self.is_extending = self.is_complete = True

    def check(self, received: Received, documents: Sequence[Message]) -> None:
        """Look at what the engine got."""
        messages = received.json["messages"]
        self.is_extending &= messages[: len(self.last)] == self.last
        self.last = messages
        texts = "\n".join(str(message.get("content")) for message in messages)
        unique = {_block(document) for document in documents}
        self.is_complete &= all(texts.count(block) == 1 for block in unique)


Body = Callable[[Client, list[Message], list[Message]], Message]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--retrieved", default="native", help="MT-RAG: which retrieval run")
    parser.add_argument("--top", type=int, default=20, help="documents per question, at most")
    parser.add_argument("--limit", type=int, help="conversations, at most")
    parser.add_argument("--capacity", type=int, help="tokens of the prefix cache; none: unbounded")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.data / "traces.jsonl.gz").exists():
        chats, modes, judged = read_traces(args.data), TRACE_MODES, "passages"
    else:
        chats = read_questions(args.data, args.retrieved, top=args.top)
        modes, judged = QUESTION_MODES, "ragboost"
    chats = chats[: args.limit]
    results = {
        name: replay(chats, body, settings, capacity=args.capacity)
        for name, (body, settings) in modes.items()
    }
    report = {"data": args.data.name, "conversations": len(chats), "modes": results}
    if args.json:
        print(json.dumps(report))
    else:
        show(report)
    if not results[judged]["is_right"]:
        sys.exit("a check failed")


def replay(
    chats: Sequence[Chat], body: Body, settings: Settings | None, *, capacity: int | None
) -> dict[str, Any]:
    """Send every request, through the proxy if there are settings for it.

    Returns:
        `requests`, `prompt_tokens`, `cached_tokens`, `prefilled_tokens`, `hit_rate`; `extending`
        and `complete`: conversations in which every request began with the last one, and in which
        every document given stood once; `is_right`: these are all.
    """
    clients = [Client(chat) for chat in chats]
    with FakeEngine(capacity_tokens=capacity) as engine:
        if settings is None:
            _send_all(clients, body, engine, engine.url)
        else:
            backend = settings.backend.model_copy(update={"url": engine.url})
            app = create_app(settings.model_copy(update={"backend": backend}))
            with serve_in_thread(app) as url:
                _send_all(clients, body, engine, url)
        prompt = sum(received.prompt_tokens for received in engine.requests)
        cached = sum(received.cached_tokens for received in engine.requests)
        num_requests = len(engine.requests)
    extending = sum(client.is_extending for client in clients)
    complete = sum(client.is_complete for client in clients)
    return {
        "requests": num_requests,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "prefilled_tokens": prompt - cached,
        "hit_rate": round(cached / prompt, 4),
        "extending": extending,
        "complete": complete,
        "is_right": extending == complete == len(clients),
    }


def _send_all(clients: Sequence[Client], body: Body, engine: FakeEngine, url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        for client, step in _in_turn(clients):
            new, documents, answer = step
            choice = {"index": 0, "message": answer, "finish_reason": "stop"}
            engine.misbehave(status=200, body=json.dumps({"choices": [choice]}).encode())
            http.post(URL, json={"model": "m", **body(client, new, documents)}).raise_for_status()
            client.check(engine.requests[-1], documents)


def _in_turn(clients: Sequence[Client]) -> Iterator[tuple[Client, Any]]:
    """The first requests of all conversations, then the second ones, and so on."""
    for steps in zip_longest(*(client.steps for client in clients)):
        for client, step in zip(clients, steps, strict=True):
            if step is not None:
                yield client, step
                client.history.append(step[2])


def _boosted(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """The history without documents, and the turn's documents for the proxy."""
    client.history.extend(new)
    ours = {"ragboost": {"documents": documents}} if documents else {}
    return {"messages": client.history, **ours}


def _latest_only(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """The turn's documents in the last message; the history goes without."""
    messages = [*client.history, *new[:-1], _with_documents(new[-1], documents)]
    client.history.extend(new)
    return {"messages": messages}


def _resent(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Every turn with its documents, all of them sent again."""
    client.history.extend([*new[:-1], _with_documents(new[-1], documents)])
    return {"messages": client.history}


def _with_documents(message: Message, documents: list[Message]) -> Message:
    blocks = "".join(_block(document) for document in documents)
    return {**message, "content": blocks + message["content"]}


def _block(document: Message) -> str:
    known = as_document(document)
    return render_document(known, label=f"[Doc_{known.label}]")


QUESTION_MODES: dict[str, tuple[Body, Settings | None]] = {
    "latest_only": (_latest_only, None),
    "resent": (_resent, None),
    "ragboost": (_boosted, Settings()),
}
TRACE_MODES: dict[str, tuple[Body, Settings | None]] = {
    "direct": (_boosted, None),
    "passages": (_boosted, Settings(dedup={"passages": True})),  # type: ignore[arg-type]
}


def read_questions(path: Path, run: str, *, top: int) -> list[Chat]:
    """MT-RAG: a question, its retrieved documents and the reference answer per turn."""
    texts = {row["id"]: row["text"] for row in _rows(path / "corpus.jsonl.gz")}
    lists = {row["id"]: row["doc_ids"][:top] for row in _rows(path / f"retrieved_{run}.jsonl.gz")}
    chats: dict[str, Chat] = {}
    for row in _rows(path / "queries.jsonl.gz"):
        name = row["conversation_id"]
        chat = chats.setdefault(name, Chat(name))
        documents = [{"id": i, "text": texts[i]} for i in lists.get(row["id"], ()) if i in texts]
        new = [{"role": "user", "content": row["question"]}]
        chat.steps.append((new, documents, {"role": "assistant", "content": row["answers"][0]}))
    return list(chats.values())


def read_traces(path: Path) -> list[Chat]:
    """Agents' traces: one request per message of the assistant."""
    texts = {row["id"]: row["text"] for row in _rows(path / "corpus.jsonl.gz")}
    chats = []
    for row in _rows(path / "traces.jsonl.gz"):
        chat, new, calls = Chat(row["id"]), [], 0
        for message in row["messages"]:
            message = {**message, "content": message.get("content", "")}
            if "doc_id" in message:
                message["content"] = texts[message.pop("doc_id")]
            if message["role"] == "tool":
                message["tool_call_id"] = f"call_{calls}"
            for call in message.get("tool_calls", ()):
                calls += 1
                function = {"name": call.pop("name"), "arguments": call.pop("arguments")}
                call.update(id=f"call_{calls}", type="function", function=function)
            if message["role"] == "assistant":
                chat.steps.append((new, [], message))
                new = []
            else:
                new.append(message)
        chats.append(chat)
    return chats


def _rows(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def show(report: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title=f"{report['data']}, {report['conversations']} conversations")
    names = list(next(iter(report["modes"].values())))
    for name in ("mode", *names):
        table.add_column(name, justify="right")
    for mode, values in report["modes"].items():
        table.add_row(mode, *(str(values[name]) for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()

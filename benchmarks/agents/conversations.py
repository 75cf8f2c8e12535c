"""Replay conversations through the proxy: check prefix extension and count prefilled tokens.

    python -m benchmarks.agents.conversations --data PATH --json

PATH is a folder of MT-RAG (questions with retrieved documents) or of agent traces (tool results).
The engine is the tests' FakeEngine: an exact prefix cache with words and punctuation as tokens.
Conversations are interleaved request by request, all or as many as --sessions at a time; answers
come from the data, no model runs. Exits with 1 if, through the proxy with session ids (agent
traces: without), a request does not extend the previous one of its conversation, or a document is
missing or repeated.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command import make_parser, report, show_rows
from benchmarks.datasets.conversations import Chat, Message, read_questions, read_traces
from ragboost.booster.context import render_document
from ragboost.config import Settings
from ragboost.proxy.app import create_app
from ragboost.proxy.serving import serve_in_thread
from ragboost.types import as_document
from tests.fakes import FakeEngine, Received

URL = "/v1/chat/completions"


class Client:
    """Client side of one conversation, which checks what the engine receives of it."""

    def __init__(self, chat: Chat) -> None:
        self.id = chat.id
        self.steps = chat.steps
        self.history: list[Message] = []
        self.documents: list[Message] = []  # so far, each once
        self.last: list[Message] = []  # that the engine received with the last request
        # Every request began with the messages of the one before; each document was in it once.
        self.is_extending = self.is_complete = True

    def check(self, received: Received, documents: Sequence[Message]) -> None:
        """Compare a request as the engine received it with the previous one and the documents."""
        messages = received.json["messages"]
        self.is_extending &= messages[: len(self.last)] == self.last
        self.last = messages
        texts = "\n".join(str(message.get("content")) for message in messages)
        unique = {_block(document) for document in documents}
        self.is_complete &= all(texts.count(block) == 1 for block in unique)


Body = Callable[[Client, list[Message], list[Message]], Message]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--retrieved", default="native", help="MT-RAG: retrieval run to use")
    parser.add_argument("--top", type=int, default=20, help="documents per question, at most")
    parser.add_argument("--limit", type=int, help="conversations, at most")
    parser.add_argument("--sessions", type=int, help="conversations at a time; default: all")
    parser.add_argument("--mode", action="append", help="repeatable; default: all")
    parser.add_argument(
        "--capacity", type=int, help="prefix cache size in tokens; default: unbounded"
    )
    args = parser.parse_args()
    if (args.data / "traces.jsonl.gz").exists():
        chats, modes, judged = read_traces(args.data), TRACE_MODES, "passages"
    else:
        chats = read_questions(args.data, args.retrieved, top=args.top)
        modes, judged = QUESTION_MODES, "ragboost_session"
    chats = chats[: args.limit]
    results = {
        name: replay(chats, *modes[name], capacity=args.capacity, sessions=args.sessions)
        for name in args.mode or modes
    }
    result = {"data": args.data.name, "conversations": len(chats), "modes": results}
    report(result, args, show)
    if judged in results and not results[judged]["is_right"]:
        sys.exit("a check failed")


def replay(
    chats: Sequence[Chat],
    body: Body,
    settings: Settings | None,
    *,
    capacity: int | None,
    sessions: int | None,
) -> dict[str, Any]:
    """Send every request, through a proxy if `settings` are given; as many `sessions` at a time.

    `extending` and `complete` count conversations; `is_right`: they are all.
    """
    clients = [Client(chat) for chat in chats]
    with FakeEngine(capacity_tokens=capacity) as engine:
        if settings is None:
            _send_all(clients, body, engine, engine.url, sessions=sessions)
        else:
            backend = settings.backend.model_copy(update={"url": engine.url})
            app = create_app(settings.model_copy(update={"backend": backend}))
            with serve_in_thread(app) as url:
                _send_all(clients, body, engine, url, sessions=sessions)
        prompt = sum(received.prompt_tokens for received in engine.completions)
        cached = sum(received.cached_tokens for received in engine.completions)
        num_requests = len(engine.completions)
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


def _send_all(
    clients: Sequence[Client], body: Body, engine: FakeEngine, url: str, *, sessions: int | None
) -> None:
    with httpx.Client(base_url=url, timeout=120) as http:
        for client, step in _interleaved(clients, sessions or len(clients)):
            new, documents, answer = step
            choice = {"index": 0, "message": answer, "finish_reason": "stop"}
            engine.misbehave(status=200, body=json.dumps({"choices": [choice]}).encode())
            http.post(URL, json={"model": "m", **body(client, new, documents)}).raise_for_status()
            client.check(engine.completions[-1], documents)


def _interleaved(clients: Sequence[Client], sessions: int) -> Iterator[tuple[Client, Any]]:
    """Yield the first request of as many conversations, then their second ones, and so on, then
    those of the next conversations."""
    for start in range(0, len(clients), sessions):
        active = clients[start : start + sessions]
        for steps in zip_longest(*(client.steps for client in active)):
            for client, step in zip(active, steps, strict=True):
                if step is not None:
                    yield client, step
                    client.history.append(step[2])


def _boosted(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Return the history without documents, and this turn's documents for the proxy."""
    client.history.extend(new)
    ours = {"ragboost": {"documents": documents}} if documents else {}
    return {"messages": client.history, **ours}


def _boosted_by_session(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Return the history without documents, this turn's documents, and a session id."""
    ours = {"documents": documents, "session_id": client.id}
    client.history.extend(new)
    return {"messages": client.history, "ragboost": ours}


def _latest_only(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Return a body with this turn's documents in the last message and none in the history."""
    messages = [*client.history, *new[:-1], _with_documents(new[-1], documents)]
    client.history.extend(new)
    return {"messages": messages}


def _resent(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Return a body that resends the documents of every turn."""
    client.history.extend([*new[:-1], _with_documents(new[-1], documents)])
    return {"messages": client.history}


def _tagged(client: Client, new: list[Message], documents: list[Message]) -> Message:
    """Return a body that resends the documents of every turn between XML tags."""
    blocks = [f'<document id="{d["id"]}">\n{d["text"]}\n</document>\n' for d in documents]
    question = {**new[-1], "content": "".join(blocks) + new[-1]["content"]}
    client.history.extend([*new[:-1], question])
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
    "in_text": (_tagged, Settings()),
    "ragboost": (_boosted, Settings()),
    "ragboost_session": (_boosted_by_session, Settings()),
}
TRACE_MODES: dict[str, tuple[Body, Settings | None]] = {
    "direct": (_boosted, None),
    "passages": (_boosted, Settings(dedup={"passages": True})),
}


def show(result: dict[str, Any]) -> None:
    rows = [{"mode": mode, **values} for mode, values in result["modes"].items()]
    show_rows(rows, f"{result['data']}, {result['conversations']} conversations")


if __name__ == "__main__":
    main()

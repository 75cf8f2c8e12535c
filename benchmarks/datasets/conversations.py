"""Recorded conversations on disk: MT-RAG's questions, and traces of agents."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.datasets.retrieval import read_rows

Message = dict[str, Any]


@dataclass
class Chat:
    """One recorded conversation, by the data set's id.

    Each step is a request: its new messages, its documents (in the proxy's form), and the
    assistant message that answers it.
    """

    id: str
    steps: list[tuple[list[Message], list[Message], Message]] = field(default_factory=list)


def read_questions(path: Path, run: str, *, top: int) -> list[Chat]:
    """Read MT-RAG: a question, its retrieved documents and the reference answer per turn."""
    texts = {row["id"]: row["text"] for row in read_rows(path, "corpus.jsonl*")}
    lists = {row["id"]: row["doc_ids"][:top] for row in read_rows(path, f"retrieved_{run}.jsonl*")}
    chats: dict[str, Chat] = {}
    for row in read_rows(path, "queries.jsonl*"):
        name = row["conversation_id"]
        chat = chats.setdefault(name, Chat(name))
        documents = [{"id": i, "text": texts[i]} for i in lists.get(row["id"], ()) if i in texts]
        new = [{"role": "user", "content": row["question"]}]
        chat.steps.append((new, documents, {"role": "assistant", "content": row["answers"][0]}))
    return list(chats.values())


def read_traces(path: Path) -> list[Chat]:
    """Read agent traces: one request per assistant message."""
    texts = {row["id"]: row["text"] for row in read_rows(path, "corpus.jsonl*")}
    chats = []
    for row in read_rows(path, "traces.jsonl*"):
        chat, new, calls = Chat(row["id"]), list[dict[str, Any]](), 0
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

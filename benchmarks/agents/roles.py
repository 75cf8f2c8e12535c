"""Agents that answer a question together: each reads a document, a manager joins the notes.

Knows request bodies and who reads what. Does not know engines or proxies.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

from ragboost.types import Document, Request
from scripts.http_client import CHAT, Answer, Body

_WHO = "You are agent {number} of {total}."
_WORK = (
    "You read one source and write a short note of what it says "
    "that helps to answer the question, for the agents who read the other sources. Do not answer "
    "the question yourself, do not repeat earlier notes, and name the persons and places that the "
    "source connects."
)
_TASK = "Note so far: {note}\nQuestion: {question}\nWrite your note."
_JOIN = "Join these notes into an answer.\n{notes}\nQuestion: {question}"


class Arm(NamedTuple):
    """One way to run the agents."""

    name: str
    policy: Literal["cache_aware", "least_loaded"]  # of the proxy's router
    is_boosted: bool = False  # the proxy may order and place the documents
    returns: bool = False  # a document goes to the agent that has read it
    is_work_shared: bool = False  # what all agents are told is in front; who it is follows


ARMS = {
    arm.name: arm
    for arm in (
        Arm("plain", "least_loaded"),
        Arm("prefix_routing", "cache_aware"),
        Arm("agent_routing", "cache_aware", is_boosted=True, returns=True),
        Arm("ragboost", "cache_aware", is_boosted=True, is_work_shared=True),
    )
}


class Readers:
    """Who has read which document; may be asked by several threads."""

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        self._read_by: dict[str, int] = {}
        self._lock = threading.Lock()

    def assign(self, documents: Sequence[Document]) -> list[int]:
        """Return an agent for each document: the one that has read it, else the least busy one."""
        with self._lock:
            agents = [self._read_by.get(document.key) for document in documents]
            load = Counter(agent for agent in agents if agent is not None)
            chosen: list[int] = []
            for document, agent in zip(documents, agents, strict=True):
                if agent is None:
                    agent = min(range(self._num_agents), key=lambda each: (load[each], each))
                    load[agent] += 1
                    self._read_by[document.key] = agent
                chosen.append(agent)
            return chosen


class Team:
    """The agents of one arm, not counting the manager, and the tokens of their requests."""

    def __init__(
        self,
        send: Callable[[str, Body], Answer],
        *,
        num_agents: int,
        arm: Arm,
        note_tokens: int,
    ) -> None:
        self.prompt_tokens = self.cached_tokens = self.num_requests = 0
        self._send = send
        self._num_agents = num_agents
        self._arm = arm
        self._note_tokens = note_tokens
        self._readers = Readers(num_agents)
        self._by_engine: Counter[str] = Counter()  # prompt tokens
        self._lock = threading.Lock()

    def assign(self, documents: Sequence[Document]) -> list[int]:
        """Return the agent that reads each document."""
        if self._arm.returns:
            return self._readers.assign(documents)
        return [rank % self._num_agents for rank in range(len(documents))]

    def read(self, agent: int, document: Document, *, question: str, note: str) -> str:
        """Let an agent read a document; return its note."""
        who = _WHO.format(number=agent + 1, total=self._num_agents)
        task = _TASK.format(note=note or "none", question=question)
        role = f"{who} {_WORK}"
        if self._arm.is_work_shared:
            role, task = _WORK, f"{who}\n{task}"
        messages = [{"role": "system", "content": role}, {"role": "user", "content": task}]
        ours = {
            "documents": [{"id": document.id, "text": document.text}],
            "options": {"boost": self._arm.is_boosted},
        }
        return self._complete({"messages": messages, "ragboost": ours})

    def join(self, notes: Sequence[str], *, question: str) -> str:
        """Let the manager join notes."""
        text = _JOIN.format(notes="\n".join(notes), question=question)
        return self._complete({"messages": [{"role": "user", "content": text}]})

    def figures(self) -> dict[str, Any]:
        """Return the counts over all requests."""
        total = max(self.prompt_tokens, 1)
        return {
            "requests": self.num_requests,
            "prompt_tokens": self.prompt_tokens,
            "prefill_tokens": self.prompt_tokens - self.cached_tokens,
            "hit_rate": round(self.cached_tokens / total, 4),
            "engine_shares": [round(n / total, 3) for _, n in sorted(self._by_engine.items())],
        }

    def _complete(self, body: dict[str, Any]) -> str:
        sample = self._send(CHAT, {**body, "max_tokens": self._note_tokens})
        with self._lock:
            self.num_requests += 1
            self.prompt_tokens += sample.prompt_tokens
            self.cached_tokens += sample.cached_tokens
            self._by_engine[sample.headers["x-ragboost-backend"]] += sample.prompt_tokens
        return sample.text or "-"


def chain(team: Team, request: Request) -> str:
    """Read the documents one after another, each with the last note; return the answer."""
    note = ""
    agents = team.assign(request.documents)
    for agent, document in zip(agents, request.documents, strict=True):
        note = team.read(agent, document, question=request.query, note=note)
    return team.join([note], question=request.query)


def tree(team: Team, request: Request) -> str:
    """Read all documents at once, join the notes by fours, and these; return the answer."""
    agents = team.assign(request.documents)
    with ThreadPoolExecutor(max(len(agents), 1)) as pool:
        notes = list(
            pool.map(
                lambda pair: team.read(*pair, question=request.query, note=""),
                zip(agents, request.documents, strict=True),
            )
        )
        while len(notes) > 4:
            groups = [notes[i : i + 4] for i in range(0, len(notes), 4)]
            notes = list(pool.map(lambda each: team.join(each, question=request.query), groups))
    return team.join(notes, question=request.query)

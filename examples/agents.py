"""Chain of agents (RAGBoost section 7.1): a worker agent reads each document, a manager joins their
notes, and a document retrieved again is routed to the agent that read it before.

The application does no routing. Each agent is a backend, and the proxy routes a request to the
backend that caches its documents. Starts two embedded engines and the proxy on loopback; with your
own engines, start `ragboost serve --backend URL --backend URL`.

Run: python examples/agents.py   (needs: the extra engine, openai)
"""

from contextlib import ExitStack
from pathlib import Path

from openai import OpenAI

import ragboost
from ragboost.config import EngineSettings, ReplicaSettings
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread

NUM_AGENTS = 2
DOCUMENTS = {
    "lease": "The lease was signed by Maria Lopez on 3 May 2024. " * 20,
    "rent": "The monthly rent is 2,400 euros and rises with the index. " * 20,
    "repairs": "Repairs above 200 euros are paid by the landlord. " * 20,
    "notice": "Notice is given three months before the end of a quarter. " * 20,
}
QUESTIONS = {  # with the retrieved documents
    "Who signed, and for how much?": ("lease", "rent", "repairs"),
    "Who pays for the boiler?": ("repairs", "lease", "notice"),
    "How does one leave, and what does it cost?": ("notice", "rent", "lease"),
}


def main() -> None:
    """Ask three questions; show the agent and the cached tokens of each document."""
    read_by: dict[str, str] = {}
    returned = 0
    with ExitStack() as stack:
        client = OpenAI(base_url=start(stack), api_key="unused")
        for question, names in QUESTIONS.items():
            notes = []
            for name in names:
                agent, cached, note = ask_worker(client, question, name)
                returned += read_by.get(name) == agent
                print(f"{name}: read by {agent}, {cached} tokens cached")
                read_by[name] = agent
                notes.append(f"{name}: {note}")
            print(f"{question} {ask(client, 'Join the notes. ' + ' '.join(notes))}")
    again = sum(map(len, QUESTIONS.values())) - len(read_by)
    print(f"{returned} of {again} documents returned to the agent that had read them")


def start(stack: ExitStack) -> str:
    """Start the agents' engines and the proxy; return the client's base URL."""
    agents = []
    for number in range(NUM_AGENTS):
        engine = create_engine_app(
            EngineSettings(model=Path("ragboost-tiny"), served_model_name="demo")
        )
        url = stack.enter_context(serve_in_thread(engine))
        agents.append(ReplicaSettings(url=url, name=f"agent-{number}"))
    settings = ragboost.Settings(backends=agents)
    return stack.enter_context(serve_in_thread(ragboost.create_app(settings))) + "/v1"


def ask_worker(client: OpenAI, question: str, name: str) -> tuple[str, int, str]:
    """Let an agent read one document; return the agent, its cached tokens and its note."""
    raw = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=[{"role": "user", "content": f"Note what helps to answer: {question}"}],
        max_tokens=4,
        extra_body={"ragboost": {"documents": [{"id": name, "text": DOCUMENTS[name]}]}},
    )
    completion = raw.parse()
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    cached = completion.usage.prompt_tokens_details.cached_tokens or 0
    note = completion.choices[0].message.content or ""
    return raw.headers["x-ragboost-backend"], cached, note


def ask(client: OpenAI, text: str) -> str:
    """Return the manager's answer."""
    completion = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": text}], max_tokens=4
    )
    return completion.choices[0].message.content or ""


if __name__ == "__main__":
    main()

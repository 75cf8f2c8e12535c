"""GraphRAG over HTTP: find a question's relation paths in a networkx graph, reuse subgraphs.

Starts the proxy and the embedded engine on loopback. The model has random weights, so its answers
are noise; `graph_attention` enables dependency attention although the model is not fine-tuned for
it. For a model of your own, see docs/graph.md.

Run: python examples/graph_rag.py   (needs: the extra engine, which brings networkx; openai)
"""

from pathlib import Path

import networkx as nx
from openai import OpenAI

import ragboost
from ragboost.config import BackendSettings, EngineSettings
from ragboost.engine import create_engine_app
from ragboost.proxy.serving import serve_in_thread

FACTS = [
    ("Elon Musk", "founded", "SpaceX"),
    ("SpaceX", "located in", "Texas"),
    ("SpaceX", "launched", "Falcon 9"),
    ("Falcon 9", "first flight", "2010"),
    ("Elon Musk", "born in", "Pretoria"),
    ("Pretoria", "capital of", "South Africa"),
]
QUESTIONS = ["Where was Elon Musk born?", "What did SpaceX launch, and who is Elon Musk?"]


def find_paths(graph: nx.MultiDiGraph, question: str, *, hops: int = 2) -> list[list[str]]:
    """Return the paths, entity, relation, entity, ..., from each entity that the question names."""
    paths = []
    for root in (entity for entity in graph if entity in question):
        found = nx.all_simple_edge_paths(graph, root, set(graph) - {root}, cutoff=hops)
        paths += [[root, *(part for edge in path for part in (edge[2], edge[1]))] for path in found]
    return paths


def main() -> None:
    """Ask two questions about the same entity; the second reuses the entity's subgraph."""
    settings = EngineSettings(
        model=Path("ragboost-tiny"), served_model_name="demo", graph_attention="dependency"
    )
    graph = nx.MultiDiGraph()
    graph.add_edges_from((head, tail, relation) for head, relation, tail in FACTS)
    with serve_in_thread(create_engine_app(settings)) as backend:
        proxied = ragboost.Settings(backend=BackendSettings(url=backend))
        with serve_in_thread(ragboost.create_app(proxied)) as proxy:
            client = OpenAI(base_url=f"{proxy}/v1", api_key="unused")
            for question in QUESTIONS:
                paths = find_paths(graph, question)
                answer = client.chat.completions.create(
                    model="demo",
                    messages=[{"role": "user", "content": question}],
                    max_tokens=4,
                    extra_body={"ragboost": {"graph": {"paths": paths}}},
                )
                print(question, *(" ".join(path) for path in paths), sep="\n")
                usage = answer.usage
                assert usage is not None
                assert usage.model_extra is not None
                reused = usage.model_extra["ragboost"]["reused"]
                print(f"-> {answer.choices[0].message.content!r}")
                print(f"{usage.prompt_tokens} prompt tokens, {reused} of them reused\n")


if __name__ == "__main__":
    main()

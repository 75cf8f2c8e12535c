"""The benchmarks of agents: who reads what, and a simulated engine."""

from pathlib import Path
from typing import Any

from benchmarks.agents.roles import ARMS, Readers
from benchmarks.agents.simulated_engine import SimulatedEngine
from benchmarks.agents.teams import load, measure, parse, start_engines
from ragboost.types import Document
from tests.benchmarks.test_end_to_end import write


def documents(names: str) -> list[Document]:
    return [Document(f"text {name}", id=name) for name in names]


def test_a_document_returns_to_the_agent_that_has_read_it() -> None:
    readers = Readers(3)
    first = dict(zip("abc", readers.assign(documents("abc")), strict=True))
    second = dict(zip("cda", readers.assign(documents("cda")), strict=True))
    assert sorted(first.values()) == [0, 1, 2]
    assert (second["c"], second["a"]) == (first["c"], first["a"])
    assert second["d"] == first["b"]


def test_agents_share_the_prefixes_of_documents_read_before(tmp_path: Path) -> None:
    texts = {f"d{i}": f"Document {i} tells of {i}. " * 20 for i in range(4)}
    write(tmp_path / "corpus.jsonl", ({"id": name, "text": text} for name, text in texts.items()))
    orders = ("012", "120", "201")
    rows = [{"id": order, "doc_ids": [f"d{digit}" for digit in order]} for order in orders]
    write(tmp_path / "retrieved_dense.jsonl", rows)
    write(tmp_path / "queries.jsonl", ({"id": o, "question": f"What of {o}?"} for o in orders))
    flags = ["--topology", "tree", "--engine", "simulated", "--data", str(tmp_path)]
    options = parse([*flags, "--agents", "3", "--engines", "1", "--at-once", "1"])
    with start_engines(options) as engines:
        result = measure(engines, load(options), options)
        (engine,) = engines
        assert isinstance(engine, SimulatedEngine)
        reads = [sent.prompt for sent in engine.completions if "Write your note." in sent.prompt]
    figures: dict[str, Any] = result["tree"]
    assert set(ARMS) <= figures.keys()
    assert len(reads) == len(ARMS) * 9
    assert all(sum(text in prompt for text in texts.values()) == 1 for prompt in reads)
    for arm in ("agent_routing", "ragboost"):
        assert figures[arm]["prefill_tokens"] < figures["plain"]["prefill_tokens"]
        assert figures[arm]["hit_rate"] > figures["plain"]["hit_rate"]

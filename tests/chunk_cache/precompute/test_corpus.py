"""A corpus is prepared once, brought up to date when it changes, and used by later requests."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import TokenSource
from ragboost.chunk_cache.precompute.catalog import ChunkCatalog
from ragboost.chunk_cache.precompute.corpus import CorpusChunk, PrecomputeOutcome, precompute
from ragboost.chunk_cache.precompute.prime import prime
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.cli import app
from ragboost.errors import ChunkCacheError
from tests.chunk_cache.families import build_adapter, build_model, make_prompt

SYSTEM, CHUNKS, QUESTION = make_prompt()
ROOT = Path(__file__).parents[3]
NEIGHBOURS: list[tuple[int, ...]] = [(1, 2), (2, 0), (3, 1), ()]


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("llama")


def corpus() -> list[CorpusChunk]:
    return [CorpusChunk(f"d{n}", tuple(chunk)) for n, chunk in enumerate(CHUNKS)]


def prepare(
    adapter: ModelAdapter,
    directory: Path,
    chunks: list[CorpusChunk] | None = None,
    neighbours: list[tuple[int, ...]] = NEIGHBOURS,
    *,
    max_tokens: int = 512,
    on_progress: Callable[[int], None] | None = None,
) -> PrecomputeOutcome:
    return precompute(
        ChunkReuse(adapter, TieredStore()),
        DiskTier(directory / "kv", capacity_bytes=1 << 24),
        ChunkCatalog(directory),
        system=SYSTEM,
        chunks=corpus() if chunks is None else chunks,
        neighbours=neighbours,
        max_tokens=max_tokens,
        on_progress=on_progress,
    )


def test_prepared_kv_is_found_by_requests_of_another_process(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    outcome = prepare(adapter, tmp_path)
    assert (outcome.num_computed, outcome.num_current, outcome.num_tokens) == (4, 0, 80)
    assert outcome.num_lost == 0

    disk = DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)
    store = TieredStore(host_bytes=1 << 24, disk=disk)
    reuse = ChunkReuse(adapter, store, recipes=ChunkCatalog.read(tmp_path))
    result = reuse.prefill(SYSTEM, CHUNKS, QUESTION, policy="reuse")
    assembly = reuse.assemble(SYSTEM, CHUNKS, QUESTION)
    store.close()

    assert result.counts.computed == len(QUESTION)
    assert assembly.source[:6].eq(TokenSource.EXACT).all()  # the system prompt was kept too
    assert assembly.source[6:86].eq(TokenSource.APPROXIMATE).all()
    want = prime(ChunkReuse(adapter, TieredStore()), SYSTEM, CHUNKS[0], neighbours=CHUNKS[1:3])
    kv = assembly.stored[0]
    assert kv is not None
    assert kv.influence == want.influence
    assert kv.base == want.base
    for (keys, values), (wanted_keys, wanted_values) in zip(kv.layers, want.layers, strict=True):
        torch.testing.assert_close(keys, wanted_keys)
        torch.testing.assert_close(values, wanted_values)


def test_a_second_run_computes_nothing(adapter: ModelAdapter, tmp_path: Path) -> None:
    prepare(adapter, tmp_path)
    again = prepare(adapter, tmp_path)
    assert (again.num_computed, again.num_current) == (0, 4)


def test_a_stopped_run_goes_on_where_it_was(adapter: ModelAdapter, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(adapter, tmp_path, on_progress=stop)
    rest = prepare(adapter, tmp_path)
    assert (rest.num_computed, rest.num_current) == (2, 2)


def test_a_killed_run_goes_on_where_it_was_and_ends_with_the_same_kv(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    program = """
        import signal, sys
        from pathlib import Path
        from tests.chunk_cache.families import build_adapter
        from tests.chunk_cache.precompute import test_corpus as its

        def tell(done):
            print(done, flush=True)
            if done == 2:
                signal.pause()

        its.prepare(build_adapter("llama"), Path(sys.argv[1]), on_progress=tell)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "killed")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert [child.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
    child.kill()
    child.communicate()

    rest = prepare(adapter, tmp_path / "killed")
    prepare(adapter, tmp_path / "whole")

    assert (rest.num_computed, rest.num_current) == (2, 2)
    killed, whole = (
        {path.stem: DiskTier(path.parent, capacity_bytes=1 << 24).load(path.stem) for path in found}
        for name in ("killed", "whole")
        for found in [(tmp_path / name / "kv").glob("*.safetensors")]
    )
    assert killed.keys() == whole.keys()
    for key, kv in killed.items():
        other = whole[key]
        assert kv is not None
        assert other is not None
        for (keys, values), (other_keys, other_values) in zip(kv.layers, other.layers, strict=True):
            torch.testing.assert_close(keys, other_keys, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(values, other_values, atol=1e-5, rtol=1e-5)


def test_a_changed_document_makes_its_own_kv_and_that_of_its_neighbours_stale(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    prepare(adapter, tmp_path)
    before = {d: ChunkCatalog(tmp_path).entry(d) for d in ("d0", "d1", "d2", "d3")}
    changed = corpus()
    changed[2] = replace(changed[2], tokens=(*changed[2].tokens[:-1], 94))

    outcome = prepare(adapter, tmp_path, changed, NEIGHBOURS)

    # d2 itself, and d0 and d1 that were computed after it; d3 has no neighbours.
    assert (outcome.num_computed, outcome.num_stale, outcome.num_current) == (3, 3, 1)
    after = ChunkCatalog(tmp_path)
    disk = DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)
    for document, old in before.items():
        new = after.entry(document)
        assert old is not None
        assert new is not None
        assert (new.key == old.key) == (document == "d3")
        assert (old.key in disk) == (document == "d3")
        assert new.key in disk
    assert len(disk) == 5  # the system prompt and four chunks


def test_other_neighbours_are_another_recipe(adapter: ModelAdapter, tmp_path: Path) -> None:
    prepare(adapter, tmp_path)
    swapped = [(2, 1), *NEIGHBOURS[1:]]
    outcome = prepare(adapter, tmp_path, corpus(), swapped)
    assert (outcome.num_stale, outcome.num_current) == (1, 3)


def test_documents_that_left_the_corpus_leave_the_disk(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    prepare(adapter, tmp_path, corpus(), [()] * 4)
    outcome = prepare(adapter, tmp_path, corpus()[:3], [()] * 3)
    assert (outcome.num_removed, outcome.num_current) == (1, 3)
    assert len(DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)) == 4
    assert ChunkCatalog(tmp_path).documents == ["d0", "d1", "d2"]


def test_kv_that_vanished_from_the_disk_is_computed_again(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    prepare(adapter, tmp_path)
    entry = ChunkCatalog(tmp_path).entry("d1")
    assert entry is not None
    DiskTier(tmp_path / "kv", capacity_bytes=1 << 24).remove(entry.key)
    outcome = prepare(adapter, tmp_path)
    assert (outcome.num_computed, outcome.num_stale, outcome.num_current) == (1, 0, 3)


def test_documents_of_equal_text_share_kv(adapter: ModelAdapter, tmp_path: Path) -> None:
    twins = [CorpusChunk("a", tuple(CHUNKS[0])), CorpusChunk("b", tuple(CHUNKS[0]))]
    outcome = prepare(adapter, tmp_path, twins, [(1,), (0,)])
    assert (outcome.num_computed, outcome.num_current) == (1, 1)
    assert ChunkCatalog(tmp_path).size_bytes > 0
    prepare(adapter, tmp_path, twins[1:], [()])
    assert len(DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)) == 2


def test_neighbours_that_do_not_fit_are_left_out_the_least_close_first(
    adapter: ModelAdapter, tmp_path: Path
) -> None:
    # 6 of the system prompt, 20 of the chunk, one behind it: room for two of 20.
    outcome = prepare(adapter, tmp_path, corpus()[:4], [(1, 2, 3), (), (), ()], max_tokens=68)
    assert outcome.num_computed == 4
    disk = DiskTier(tmp_path / "kv", capacity_bytes=1 << 24)
    entry = ChunkCatalog(tmp_path).entry("d0")
    assert entry is not None
    kv = disk.load(entry.key)
    assert kv is not None
    want = prime(ChunkReuse(adapter, TieredStore()), SYSTEM, CHUNKS[0], neighbours=CHUNKS[2:4])
    assert kv.influence == want.influence


def test_no_room_is_said(adapter: ModelAdapter, tmp_path: Path) -> None:
    with pytest.raises(ChunkCacheError, match="bytes of document d0; increase the capacity"):
        precompute(
            ChunkReuse(adapter, TieredStore()),
            DiskTier(tmp_path / "kv", capacity_bytes=1000),
            ChunkCatalog(tmp_path),
            system=[],
            chunks=corpus(),
            neighbours=NEIGHBOURS,
            max_tokens=512,
        )


def test_a_budget_that_is_too_small_for_all_is_told(adapter: ModelAdapter, tmp_path: Path) -> None:
    prepare(adapter, tmp_path / "whole", corpus(), NEIGHBOURS)
    size = DiskTier(tmp_path / "whole" / "kv", capacity_bytes=1 << 24).size_bytes
    outcome = precompute(
        ChunkReuse(adapter, TieredStore()),
        DiskTier(tmp_path / "kv", capacity_bytes=size // 2),
        ChunkCatalog(tmp_path),
        system=SYSTEM,
        chunks=corpus(),
        neighbours=NEIGHBOURS,
        max_tokens=512,
    )
    assert outcome.num_computed == 4
    assert outcome.num_lost > 0


def make_corpus(directory: Path) -> list[str]:
    """A model with a tokenizer of words, a corpus, and the command that prepares it."""
    words = "the lease was signed by sue ann in may june rent is due on monday tuesday"
    vocabulary = {"<unk>": 0} | {word: number for number, word in enumerate(words.split(), 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(
        directory / "model"
    )
    build_model("llama").save_pretrained(directory / "model")
    documents = [
        {"id": 1, "title": "lease", "text": "the lease was signed by sue in may"},
        {"id": 2, "text": "the lease was signed by ann in june"},
        {"id": "three", "text": "rent is due on monday"},
    ]
    (directory / "corpus.jsonl").write_text("\n".join(json.dumps(d) for d in documents))
    (directory / "system.txt").write_text("rent lease\n")
    return [
        *("precompute", "--model", str(directory / "model"), "--out", str(directory / "out")),
        *("--corpus", str(directory / "corpus.jsonl"), "--top-n", "2"),
        *("--system", str(directory / "system.txt"), "--no-progress"),
    ]


def test_the_command_prepares_a_corpus_and_brings_it_up_to_date(tmp_path: Path) -> None:
    command = make_corpus(tmp_path)

    first = CliRunner().invoke(app, [*command, "--json"])
    again = CliRunner().invoke(app, command)
    text = (tmp_path / "corpus.jsonl").read_text().replace("monday", "tuesday")
    (tmp_path / "corpus.jsonl").write_text(text)
    changed = CliRunner().invoke(app, [*command[:-1], "--json", "--progress"])

    assert first.exit_code == 0, first.output
    figures = json.loads(first.stdout)
    assert (figures["num_computed"], figures["num_documents"]) == (3, 3)
    assert figures["size_bytes"] > 0
    assert figures["tokens_per_s"] > 0
    assert "0 chunks computed (0 of them had changed), 3 were up to date" in again.stdout
    assert json.loads(changed.stdout)["num_stale"] >= 1
    assert "chunks" not in first.stderr
    assert "chunks" in changed.stderr


@pytest.mark.parametrize(
    ("option", "lines", "computed"),
    [
        ("--edges", ['{"source": 1, "target": "three"}', '{"source": 2, "target": 1}'], 3),
        ("--trace", ['{"doc_ids": [1, 2]}', "", '{"doc_ids": [1, "three"]}'], 3),
    ],
)
def test_neighbours_may_come_from_a_file(
    tmp_path: Path, option: str, lines: list[str], computed: int
) -> None:
    command = make_corpus(tmp_path)
    (tmp_path / "near.jsonl").write_text("\n".join(lines))
    done = CliRunner().invoke(app, [*command, option, str(tmp_path / "near.jsonl"), "--json"])
    assert json.loads(done.stdout)["num_computed"] == computed


def test_what_the_command_cannot_use_is_named(tmp_path: Path) -> None:
    command = make_corpus(tmp_path)
    (tmp_path / "near.jsonl").write_text('{"source": 1, "target": 9}')
    near = ["--edges", str(tmp_path / "near.jsonl")]
    unknown = CliRunner().invoke(app, [*command, *near])
    several = CliRunner().invoke(app, [*command, *near, "--trace", str(tmp_path / "near.jsonl")])
    nowhere = CliRunner().invoke(app, [*command, "--vectors", str(tmp_path / "none.npy")])
    assert "near.jsonl:1: no document of the corpus has the id 9" in str(unknown.exception)
    assert "neighbours come from one source, got --edges and --trace" in str(several.exception)
    assert "none.npy does not exist" in str(nowhere.exception)


@pytest.mark.parametrize(
    ("option", "line", "reason"),
    [
        ("--edges", "{", ":2: not JSON"),
        ("--edges", "[1, 2]", ":2: must be an object, got array"),
        ("--edges", '{"source": 1, "target": 2, "weight": "much"}', ":2: weight must be a finite"),
        ("--edges", '{"source": 1, "target": 2, "weight": NaN}', ":2: weight must be a finite"),
        ("--trace", '{"doc_ids": 1}', ":2: doc_ids must be a list of ids, got 1"),
        ("--trace", '{"doc_ids": [1, null]}', ":2: no document of the corpus has the id None"),
        ("--vectors", "1 2 3", "is not a .npy file of numbers"),
    ],
)
def test_a_line_that_says_nothing_about_neighbours_is_named(
    tmp_path: Path, option: str, line: str, reason: str
) -> None:
    command = make_corpus(tmp_path)
    (tmp_path / "near").write_text(f"\n{line}\n")
    done = CliRunner().invoke(app, [*command, option, str(tmp_path / "near")])
    assert f"{tmp_path / 'near'}" in str(done.exception)
    assert reason in str(done.exception)


def test_vectors_of_another_corpus_are_refused(tmp_path: Path) -> None:
    command = make_corpus(tmp_path)
    np.save(tmp_path / "vectors.npy", np.ones((2, 4)))
    done = CliRunner().invoke(app, [*command, "--vectors", str(tmp_path / "vectors.npy")])
    assert "has shape (2, 4), expected a row for each of 3 documents" in str(done.exception)

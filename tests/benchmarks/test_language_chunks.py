"""The benchmark of chunk reuse on language: prompts, cells made by rule, resuming, rows."""

import gzip
import json
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra engine")

import torch

from benchmarks.language.arms import ArmRunner, Outcome
from benchmarks.language.cases import LanguageCase, cut, read_cases, read_constant, split
from benchmarks.language.cells import TASKS, make_cases
from benchmarks.language.chunks import RATIOS, make_row, measure
from ragboost.chunk_cache.eval.arms import FULL
from ragboost.config import EngineSettings
from ragboost.engine.loading import LoadedModel, load_model
from ragboost.types import Document

NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kim", "Leo")


def _count(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(EngineSettings(model=Path("ragboost-tiny")))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve documents of 120 words, and ten questions, each with one of the first ten."""
    rows = [
        {"id": name, "title": name, "text": " ".join(f"{name} has {n} goats." for n in range(40))}
        for name in NAMES
    ]
    asked = [
        {"id": f"q{name}", "question": f"Who is {name}?", "answers": [name], "gold_doc_ids": [name]}
        for name in NAMES[:10]
    ]
    lists = [{"id": f"q{name}", "doc_ids": list(NAMES)} for name in NAMES[:10]]
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    for name, lines in (("queries", asked), ("retrieved_given", lists), ("retrieved_bm25", lists)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    return tmp_path


def _args(data: Path, **changes: Any) -> Namespace:
    options: dict[str, Any] = {
        "model": None,
        "threads": 1,
        "dtype": "auto",
        "data": data,
        "questions": "development",
        "task": None,
        "cases": 10,
        "seed": 11,
        "documents": 3,
        "stored": "alone",
        "question_first": False,
        "longest": 260,
        "answer_tokens": 24,
        "policies": "gradual",
        "ratios": "0.15",
        "limit": 2,
        "no_answers": False,
        "parts": None,
    }
    return Namespace(**{**options, **changes})


def test_every_case_has_its_gold_documents_and_the_order_of_the_run(data: Path) -> None:
    cases = read_cases(data, num_documents=3, count_tokens=_count)

    assert [case.id for case in cases] == [f"q{name}" for name in NAMES[:10]]
    for case, gold in zip(cases, NAMES[:10], strict=True):
        titles = [document.title for document in case.documents]
        assert gold in titles
        assert titles == sorted(titles, key=NAMES.index)
    assert [document.id for document in cases[-1].documents] == ["1", "2", "3"]


def test_development_and_test_questions_are_disjoint_and_keep_conversations_whole() -> None:
    cases = [
        LanguageCase(f"{talk}-{turn}", "Who?", ("Ada",), (), conversation=str(talk))
        for talk in range(5)
        for turn in range(3)
    ]
    development, test = split(cases, "development"), split(cases, "test")

    assert {case.conversation for case in development} == {"0", "1"}
    assert [*development, *test] == cases


def test_a_long_document_is_cut_behind_a_word() -> None:
    assert cut("one two three four", _count, longest=3) == "one two three"
    assert cut("one two", _count, longest=3) == "one two"


@pytest.mark.parametrize("task", TASKS)
def test_a_cell_is_drawn_from_its_seed_and_holds_its_answer(task: str, data: Path) -> None:
    def made(seed: int) -> list[LanguageCase]:
        options: dict[str, Any] = {"num_documents": 8, "count_tokens": _count}
        return make_cases(task, data, count=5, seed=seed, **options)

    cases = made(1)

    assert cases == made(1)
    assert cases != made(2)
    for case in cases:
        assert len(case.documents) == 8
        text = " ".join(f"{document.title} {document.text}" for document in case.documents)
        words = case.answers if task == "order" else case.answers[0].split()
        assert all(word in text for word in words)


@pytest.mark.parametrize("stored", ["alone", "captured", "elsewhere"])
def test_nothing_differs_from_full_attention_where_everything_is_computed(
    stored: Any, loaded: LoadedModel, data: Path
) -> None:
    case, other, *_ = read_cases(data, num_documents=3, count_tokens=_count)
    case = replace(case, strangers=other.documents)
    runner = ArmRunner(loaded, stored=stored)
    tokens, chunks = runner.prompt(case.question, case.documents)
    assert loaded.adapter is not None
    with torch.no_grad():
        logits = loaded.adapter.model(torch.tensor([tokens])).logits[0, -1]

    full, whole, reuse = runner.run(case, [FULL, ("epic", 1.0), ("reuse", 0.0)])

    assert len(chunks) == 3
    assert full.same_answer
    assert (full.text or "").startswith(loaded.tokenizer.decode([int(logits.argmax())]).strip())
    assert whole.kl < 1e-6
    assert whole.kl_answer < 1e-6
    assert whole.same_answer
    assert reuse.kl_answer > 1e-6
    assert reuse.computed < whole.computed <= full.computed  # alone, the first one is exact


def test_what_is_stored_behind_a_constant_document_is_exact_behind_it(
    loaded: LoadedModel, data: Path
) -> None:
    (case, *_) = read_cases(data, num_documents=3, count_tokens=_count)
    constant = read_constant(data, "draw1", count_tokens=_count)
    runner = ArmRunner(loaded, stored="alone", constants={"draw1": constant})
    arms = [FULL, ("reuse", 0.0), ("reuse@draw1", 0.0)]
    behind_it = replace(case, documents=(constant, case.documents[0]))

    _, alone, exact = runner.run(behind_it, arms)
    _, _, behind = runner.run(case, arms)

    assert exact.policy == "reuse@draw1"
    assert exact.computed == alone.computed
    assert exact.kl_answer < 1e-5 < alone.kl_answer
    assert behind.kl_answer > 1e-5, "the constant document is not in the prompt"


def test_other_orders_share_a_prefix_or_keep_the_best_document_last_and_whole(
    loaded: LoadedModel, data: Path
) -> None:
    case, other, *_ = read_cases(data, num_documents=4, count_tokens=_count)
    strangers = tuple(replace(each, id=f"other_{each.id}") for each in other.documents)
    case = replace(case, strangers=strangers)
    runner = ArmRunner(loaded, stored="alone")
    tokens, chunks, _ = runner.ordered(case, "last")
    *_, num_cached = runner.ordered(case, "shared")
    bought, places, num_bought = runner.ordered(case, "bought")
    kept, kept_places, num_kept = runner.ordered(case, "bought_last")

    arms = ["full", "shared/full", "shared/reuse", "last/reuse", "last/reuse+last"]
    found = {o.policy: o for o in runner.run(case, [(arm, 0.0) for arm in arms])}

    assert loaded.tokenizer.decode(tokens[slice(*chunks[-1])]).startswith("[Doc_1]")
    assert (num_cached, num_bought) == (2, 2)
    texts = [loaded.tokenizer.decode(bought[slice(*place)]) for place in places]
    assert texts[2:] == sorted(texts[2:]), "by relevance behind what is exact"
    assert loaded.tokenizer.decode(kept[slice(*kept_places[-1])]).startswith("[Doc_1]")
    assert num_kept == 1, "its best document stood last in the earlier requests"
    assert list(found) == [*arms[:3], "last/full", *arms[3:]]
    for order in ("last", "shared"):  # sums in another order differ in their last bits
        assert found[f"{order}/full"].kl == pytest.approx(0.0, abs=1e-6)
    assert found["shared/full"].computed < 0.8 * found["full"].computed
    assert found["shared/reuse"].computed < found["last/reuse"].computed
    share = (chunks[-1][1] - chunks[-1][0]) / len(tokens)
    more = found["last/reuse+last"].computed - found["last/reuse"].computed
    assert more == pytest.approx(share)


def test_a_constant_document_is_the_longest_or_drawn_by_its_name(data: Path) -> None:
    rows = [{"id": name, "title": name, "text": f"{name} is. " * 70} for name in NAMES]
    rows[3]["text"] *= 10
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (data / "corpus.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    read = partial(read_constant, data, count_tokens=_count, longest=120)

    longest, drawn = read("longest"), [read(f"draw{number}") for number in range(9)]

    assert (longest.title, _count(longest.text)) == ("Dora", 512)
    assert len({document.title for document in drawn}) > 2
    assert read("draw1") == drawn[1]
    assert {_count(document.text) for document in drawn} == {120}


def test_documents_are_written_as_the_booster_writes_them(loaded: LoadedModel) -> None:
    runner = ArmRunner(loaded, stored="alone")
    documents = [Document("Ada signed the lease in May.", id="1", title="The lease")]
    tokens, _ = runner.prompt("Who signed?", documents, history=(("user", "Hello"),))

    text = loaded.tokenizer.decode(tokens, skip_special_tokens=False)
    assert "[Doc_1] The lease\nAda signed the lease in May.\n\nWho signed?<|im_end|>" in text
    assert text.index("in as few words") < text.index("Hello") < text.index("[Doc_1]")


def test_a_rerun_answers_only_what_is_missing_and_gives_the_same_rows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = tmp_path / "parts"
    settings = EngineSettings(model=Path("ragboost-tiny"))
    monkeypatch.setattr("benchmarks.language.chunks.load_model", lambda _: load_model(settings))
    first = measure(_args(data, parts=parts))
    (file,) = parts.iterdir()
    with file.open("a") as unfinished:
        unfinished.write('\n{"id": "qCleo", "outc')
    ran = []
    original = ArmRunner.run

    def counted(self: ArmRunner, case: LanguageCase, arms: Any, **options: Any) -> Any:
        ran.append((case.id, arms))
        return original(self, case, arms, **options)

    monkeypatch.setattr(ArmRunner, "run", counted)
    again = measure(_args(data, parts=parts))
    more = measure(_args(data, parts=parts, limit=3, policies="gradual,epic:0.15"))

    assert again == first
    assert [row["policy"] for row in first["rows"]] == ["full", "reuse", "gradual"]
    assert first["rows"][0]["kl"] == 0
    assert first["rows"][0]["loss"] == 0
    added = [("epic", 0.15)]
    whole = [FULL, ("reuse", 0.0), ("gradual", 0.15), *added]
    assert ran == [("qAda", added), ("qBen", added), ("qCleo", whole)]
    assert [row["n"] for row in more["rows"]] == [3] * 4
    assert more["rows"][2]["computed"] == pytest.approx(first["rows"][2]["computed"], abs=0.02)
    assert "behind" not in first["rows"][2], "the default was not measured"
    assert RATIOS == (0.05, 0.1, 0.15, 0.3)


def test_rows_compare_an_arm_with_the_default_and_with_full_attention(data: Path) -> None:
    rows = measure(_args(data, policies="anchored,epic", limit=3))["rows"]

    by_policy = {row["policy"]: row for row in rows}
    default, full = by_policy["anchored"], by_policy["full"]
    assert default["behind"] == default["contains_behind"] == full["contains_loss"] == 0.0
    reuse = by_policy["reuse"]
    assert reuse["behind"] == pytest.approx(reuse["kl_answer"] - default["kl_answer"], abs=2e-4)
    assert by_policy["epic"]["behind_low"] <= by_policy["epic"]["behind"]
    for row in rows:
        lost = full["contains"] - row["contains"]
        assert row["contains_loss"] == pytest.approx(lost, abs=2e-4)
        assert row["contains_loss_low"] <= lost <= row["contains_loss_high"]
        assert row["same_first_low"] <= row["same_first"] <= row["same_first_high"]


def test_right_answers_are_lost_where_full_attention_alone_has_them() -> None:
    full = [_outcome(contains=right) for right in (1.0, 1.0, 1.0, 0.0)]
    found = [_outcome(contains=right) for right in (1.0, 0.0, 0.0, 1.0)]
    groups = ["a", "b", "c", "d"]

    row = make_row("needles1", ("epic", 0.2), found, full, groups, default=full)

    assert (row["contains"], row["contains_loss"], row["contains_behind"]) == (0.5, 0.25, 0.25)
    undecoded = [*found[:3], _outcome(contains=None)]
    for case, default in ((undecoded, full), (found, undecoded)):
        row = make_row("needles1", ("epic", 0.2), case, full, groups, default=default)
        assert "contains_behind" not in row
    assert "contains_loss" not in make_row("needles1", ("epic", 0.2), undecoded, full, groups)


def _outcome(*, contains: float | None) -> Outcome:
    fields: dict[str, Any] = {"kl": 0.1, "kl_answer": 0.1, "same_first": True, "same_answer": False}
    fields |= {"computed": 0.2, "cpu_s": 1.0, "text": "", "f1": contains, "contains": contains}
    return Outcome("epic", 0.2, **fields)


def test_more_documents_than_a_question_has_are_one_sentence(data: Path) -> None:
    with pytest.raises(SystemExit, match="no development question with 20 documents"):
        measure(_args(data, documents=20))


def test_the_question_may_stand_before_the_documents(loaded: LoadedModel, data: Path) -> None:
    (case, *_) = read_cases(data, num_documents=3, count_tokens=_count)
    runner = ArmRunner(loaded, stored="alone", is_question_first=True)

    tokens, chunks = runner.prompt(case.question, case.documents)
    _, reuse = runner.run(case, [("anchored", 0.15)])

    assert len(chunks) == 3
    assert case.question in loaded.tokenizer.decode(tokens[: chunks[0][0]])
    assert reuse.computed < 0.5

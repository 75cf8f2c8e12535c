"""The reference models answer as docs/lab/graph.md says, on few graphs."""

from benchmarks.graph.quality import MODELS, accuracy, load, subgraphs, tree, written_out
from research.graph_tasks import draw_cases


def test_tuning_brings_back_what_the_tree_costs() -> None:
    cases = draw_cases(8, seed=1)
    base, tuned = load(MODELS / "base"), load(MODELS / "depth")

    ordinary = accuracy(written_out(base), cases)
    untuned = accuracy(tree(base, "depth"), cases)
    after = accuracy(tree(tuned, "depth"), cases)

    assert ordinary["two_hop"] >= 0.75
    assert after["two_hop"] >= 0.75
    assert untuned["mean"] < ordinary["mean"]


def test_subgraphs_that_are_independent_lose_nothing_untuned() -> None:
    cases = draw_cases(8, seed=2)
    base = load(MODELS / "base")

    apart = accuracy(subgraphs(base, ratio=0.0, policy="gradual"), cases)

    assert apart["mean"] >= accuracy(written_out(base), cases)["mean"] - 0.1

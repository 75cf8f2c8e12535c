"""Measure the tokens of a running request while another one's chunks are read, in vLLM.

    .venv-vllm/bin/python -m benchmarks.engines.gaps --json

Of each run the longest time from one token of the running request to the next; of these the median
over the runs, with the other one's chunks in memory, on a disk that takes 50 ms a layer, and on one
that hangs. `slow_to_memory` and `hung_to_memory` are their quotients.
"""

import statistics
import tempfile
from typing import Any

from benchmarks.command import make_parser, report, show_figures
from tests.engines.chunks_vllm_places import LAYER_S, Gate, make_engine, make_prompts, run


def measure(runs: int) -> dict[str, Any]:
    """Take turns between the three places, and return the figures."""
    gate, gaps = Gate(), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder, gate.before_reads():
        prompts = make_prompts()
        engine = make_engine(folder, prompts)
        for number in range(runs + 1):
            told = {"memory": run(engine, prompts, gate, is_in_memory=True)}
            gate.is_open.clear()
            told["hung"] = run(engine, prompts, gate)
            with gate.before_reads(seconds=LAYER_S):
                told["slow"] = run(engine, prompts, gate)
            for name, figures in told.items() if number else ():  # the first one warms up
                gaps.setdefault(name, []).append(figures["longest_step_s"])
                assert figures["longest_gap_steps"] == 1, figures
    medians = {f"{name}_s": statistics.median(each) for name, each in gaps.items()}
    return medians | {
        "slow_to_memory": medians["slow_s"] / medians["memory_s"],
        "hung_to_memory": medians["hung_s"] / medians["memory_s"],
        "runs": runs,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    report(measure(args.runs), args, show_figures)


if __name__ == "__main__":
    main()

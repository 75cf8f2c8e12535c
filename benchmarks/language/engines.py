"""Compare chunk reuse inside vLLM or SGLang with the library, on a language model.

    python -m benchmarks.language.engines --engine vllm --json

The prompts of `benchmarks.language.guard`, half of them reordered with an order hint, by SmolLM2 in
float32, with full attention and with the default of chunk reuse. Each document is stored from a
request of its own. The engine computes in its own environment (`engine_logprobs`).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.command import make_parser
from benchmarks.language.arms import STORING, ArmRunner
from benchmarks.language.cases import LanguageCase
from benchmarks.language.guard import MODEL, NUM_PROMPTS, make_prompts, make_runner
from ragboost.chunk_cache.eval.arms import FULL
from ragboost.chunk_cache.eval.full_answer import kl_divergence
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO
from ragboost.config.model_directory import find_model
from scripts.processes import exit_on_sigterm
from tests.engines.servers import environment, missing, python

LOGPROBS = "logprobs.pt"


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt: largest differences of log-probabilities, and what reuse does in both."""

    difference: float  # with full attention
    difference_reused: float
    first_equal: bool  # the engine's first token is the library's, in both arms
    kl: float  # of reuse to full attention, in the engine
    kl_library: float


def requests(runner: ArmRunner, cases: Sequence[LanguageCase]) -> list[dict[str, Any]]:
    """Return each case in token ids and chunks: the prompts that store its documents, its own."""
    return [
        {
            "stored": [runner.prompt(STORING, [document]) for document in case.documents],
            "prompt": runner.prompt(case.question, case.documents, earlier=case.earlier),
        }
        for case in cases
    ]


def compare(engine: torch.Tensor, library: Sequence[torch.Tensor]) -> Compared:
    """Compare the logits of full attention and of reuse, (2, vocabulary), in an engine and in the
    library."""
    found = engine.float().log_softmax(-1)
    expected = torch.stack(list(library)).float().log_softmax(-1)
    full, reused = (found - expected).abs().amax(-1).tolist()
    return Compared(
        full,
        reused,
        bool((found.argmax(-1) == expected.argmax(-1)).all()),
        kl_divergence(found[1], found[0]),
        kl_divergence(expected[1], expected[0]),
    )


def summarise(rows: Sequence[Compared]) -> dict[str, Any]:
    """Return the largest differences, the shares of equal tokens, and the mean divergences."""
    return {
        "prompts": len(rows),
        "full_logprob_difference": max(row.difference for row in rows),
        "reused_logprob_difference": max(row.difference_reused for row in rows),
        "first_equal": sum(row.first_equal for row in rows),
        "kl": fmean(row.kl for row in rows),
        "kl_library": fmean(row.kl_library for row in rows),
        "rows": [asdict(row) for row in rows],
    }


def ask_engine(engine: Any, fields: Mapping[str, Any], folder: Path) -> torch.Tensor:
    """Return the engine's log-probabilities, (prompts, 2, vocabulary)."""
    (folder / "requests.json").write_text(json.dumps(fields), encoding="utf-8")
    module = ["-W", "ignore", "-m", "benchmarks.language.engine_logprobs"]
    command = [*python(engine), *module, engine, str(folder)]
    subprocess.run(command, env=environment(engine), stdout=sys.stderr, check=True)
    found: torch.Tensor = torch.load(folder / LOGPROBS, weights_only=True)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--limit", type=int, default=NUM_PROMPTS, help="prompts")
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing(args.engine):
        sys.exit(reason)
    cases, default = make_prompts()[: args.limit], (DEFAULT_POLICY, DEFAULT_RATIO)
    runner = make_runner()
    fields = {
        "model": str(find_model(MODEL)),
        "options": {"policy": default[0], "ratio": default[1]},
        "requests": requests(runner, cases),
    }
    with tempfile.TemporaryDirectory() as folder:
        found = ask_engine(args.engine, fields, Path(folder))
    library = [runner.first_logits(case, [FULL, default]) for case in cases]
    rows = [compare(*pair) for pair in zip(found, library, strict=True)]
    summary = {"engine": args.engine, **summarise(rows)}
    print(json.dumps(summary, indent=None if args.json else 1))


if __name__ == "__main__":
    main()

"""Measure chunk reuse inside a real engine, with random models on the CPU.

    python -m benchmarks.engines.chunks --engine vllm --json
    python -m benchmarks.engines.chunks --engine vllm --only equality,poisoning --json
    python -m benchmarks.engines.chunks --engine sglang --only equality,poisoning --json

Parts, each in a process of the engine's environment (`make engines`):

- `equality`: greatest difference of log-probabilities from `ChunkReuse` in transformers, for each
  policy and ratio (`max_logprob_difference` is the greatest of all).
- `poisoning`: exact requests after approximate ones differ from ordinary ones (`poisoned`).
- `ttft`: time to the first token, selection included; `ttft_ratio[tokens][ratio]` is that of full
  prefill divided by it for the default policy, `ttft_ratio_by_policy` for all. CPU seconds,
  medians of alternating runs.
- `itl`: slowest step that a decoding request sees while a prompt comes in, in seconds.
- `sustained`: new questions over one corpus; `sustained` is the speed-up of the last 50 divided by
  that of the first 50.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.command import make_parser
from scripts.processes import exit_on_sigterm
from tests.engines.servers import environment, missing, python

PARTS = ("equality", "poisoning", "ttft", "itl", "sustained")
FORWARDED = ("tokens", "layers", "workers", "questions", "dtype", "policies")


def run_part(engine: Any, part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one part in the engine's environment and return its last line."""
    options = [f"--{name}={getattr(args, name)}" for name in FORWARDED]
    module = ["-W", "ignore", "-m", "benchmarks.engines.chunk_parts"]
    done = subprocess.run(
        [*python(engine), *module, engine, part, *options],
        env=environment(engine),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"part {part} failed with status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--only", default="", help="parts, separated by commas; default: all")
    parser.add_argument("--tokens", default="1024,4096,8192", help="prompt lengths of `ttft`")
    parser.add_argument("--layers", type=int, default=24, help="layers of the timed model")
    parser.add_argument(
        "--workers", type=int, default=1, help="of vLLM in `ttft`; above 1 times are wall time"
    )
    parser.add_argument("--questions", type=int, default=1000, help="requests of `sustained`")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of the timed model; float32 on CPUs without instructions for bfloat16 (AVX2)",
    )
    parser.add_argument("--policies", default="", help="of `ttft`; default: six")
    args = parser.parse_args()
    exit_on_sigterm()
    if reason := missing(args.engine):
        sys.exit(reason)
    result: dict[str, Any] = {"engine": args.engine, "layers": args.layers}
    for part in args.only.split(",") if args.only else PARTS:
        if part not in PARTS:
            parser.error(f"--only: there is no part {part!r}, only {', '.join(PARTS)}")
        figures = run_part(args.engine, part, args)
        print(part, json.dumps(figures))
        result.update(figures)
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()

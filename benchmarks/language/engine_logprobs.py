"""Compute the prompts of `benchmarks.language.engines` inside an engine, in its environment; writes
log-probabilities of first tokens into the folder of the prompts.

python -m benchmarks.language.engine_logprobs vllm FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from benchmarks.engines import chunk_parts


def main() -> None:
    kind, folder = getattr(chunk_parts, sys.argv[1])(), Path(sys.argv[2])
    options = dict(kind.small)
    if "page_size" in options:
        options["page_size"] = 1  # larger ones leave the end of the last document to the engine
    fields = json.loads((folder / "requests.json").read_text(encoding="utf-8"))
    found = []
    with kind.make(Path(fields["model"]), torch.float32, **options) as engine:
        for request in fields["requests"]:
            for tokens, chunks in request["stored"]:
                engine.run(tokens, chunks)
            engine.flush()
            tokens, chunks = request["prompt"]
            reused = engine.run(tokens, chunks, **fields["options"])
            if reason := engine.report(reused).get("reason"):
                raise RuntimeError(f"chunks were not reused: {reason}")
            engine.flush()
            arms = [engine.logprobs(tokens)]
            engine.flush()
            arms.append(engine.logprobs(tokens, chunks, **fields["options"]))
            engine.flush()
            found.append(torch.stack(arms))
    torch.save(torch.stack(found), folder / "logprobs.pt")


if __name__ == "__main__":
    main()

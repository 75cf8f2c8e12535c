"""Check that vLLM starts and serves if one of its internals is not where chunk reuse expects it.

Prints one JSON object, which the test that starts this file checks.
"""

import json
import logging

from vllm.v1.core import kv_cache_utils

from ragboost.chunk_cache.http.reports import read_status
from tests.engines.chunks_vllm import report
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import SMALL, Prompts


class Warnings(logging.Handler):
    """Counts the warnings of chunk reuse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main() -> None:
    del kv_cache_utils.maybe_convert_block_hash
    warnings = Warnings()
    logging.getLogger("ragboost").addHandler(warnings)
    engine = ReuseLLM(SMALL, blocks=75, max_model_len=1024, max_num_batched_tokens=1024)
    prompts = Prompts(system=40, chunks=2, size=120, question=23)
    tokens, positions = prompts.prompt([0, 1])
    told = report(engine.run(tokens, positions))
    error = engine.logprobs(tokens, positions) - engine.exact(tokens)
    instance = engine.llm.llm_engine.vllm_config.instance_id
    print(
        json.dumps(
            {
                "reason": told["reason"],
                "error": float(error.abs().max()),
                "refusal": read_status(instance),
                "num_warnings": len(warnings.texts),
            }
        )
    )


if __name__ == "__main__":
    main()

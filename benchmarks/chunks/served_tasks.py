"""Ask the reference tasks through proxy and embedded engine, with chunks reused and without.

Document order matters in them, so ordering is off.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM
from transformers import PreTrainedTokenizerFast as FastTokenizer

from benchmarks.chunks.reference import MODEL
from benchmarks.chunks.served import AS_SENT, serve
from ragboost.chunk_cache.selection import DEFAULT_POLICY
from ragboost.config import EngineSettings
from research.tasks import TASKS, TaskPrompt, make_prompts
from scripts.http_client import SOURCES

SEED = 301


def build_task_model(path: Path) -> None:
    """Write the reference model with a tokenizer in which the word `t17` is id 17 and document
    labels encode to nothing."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.save_pretrained(path)
    size = int(model.config.vocab_size)
    words = {f"t{number}": number for number in range(size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))  # no password
    tokenizer.normalizer = normalizers.Replace(Regex(r"\[[^\]]*\]"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    fast = FastTokenizer(tokenizer_object=tokenizer)
    fast.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    fast.save_pretrained(path)


def measure_tasks(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run the reference tasks exactly, with reuse at two recompute ratios, and at ratio 0."""
    modes: dict[str, Any] = {"exact": "exact", "0": {"policy": DEFAULT_POLICY, "ratio": 0.0}}
    modes |= {f"{r:g}": {"policy": DEFAULT_POLICY, "ratio": r} for r in (0.1, 0.15)}
    right: dict[str, dict[str, list[bool]]] = {}
    same: dict[str, list[bool]] = {mode: [] for mode in modes}
    tokens = dict.fromkeys(SOURCES, 0)
    total = 0
    with serve(EngineSettings(model=model, num_threads=1), AS_SENT) as served:
        for task in TASKS:
            found = right.setdefault(task, {mode: [] for mode in modes})
            for prompt in make_prompts(task, args.prompts, seed=SEED):
                # Send the chunks in another order first: each is stored, none is a prefix here.
                served.ask(_task_body(prompt, "approx", is_reversed=True))
                texts = {}
                for mode, reuse in modes.items():
                    served.engine.reset_prefix_cache().result(60)
                    answer = served.ask(_task_body(prompt, reuse))
                    texts[mode] = answer.text.strip()
                    found[mode].append(texts[mode] == f"t{prompt.answer}")
                    same[mode].append(texts[mode] == texts["exact"])
                    if mode == "0.15":
                        total += answer.prompt_tokens
                        for name, count in answer.sources.items():
                            tokens[name] += count
            print(f"tasks: {task} done", file=sys.stderr)
    assert sum(tokens.values()) == total
    accuracy = {
        task: {mode: round(statistics.fmean(hits), 4) for mode, hits in by_mode.items()}
        for task, by_mode in right.items()
    }
    return {
        "prompts": args.prompts,
        "policy": DEFAULT_POLICY,
        "accuracy": accuracy,
        "normalised": {task: _normalised(scores) for task, scores in accuracy.items()},
        "same_as_exact": {mode: round(statistics.fmean(hits), 4) for mode, hits in same.items()},
        "tokens_at_0.15": tokens,
        "prompt_tokens_at_0.15": total,
    }


def _normalised(scores: Mapping[str, float]) -> dict[str, float] | None:
    """Return FusionRAG eq. 11 by ratio, or None where full reuse loses nothing."""
    lost = scores["exact"] - scores["0"]
    if lost <= 0:
        return None
    return {mode: round((scores[mode] - scores["0"]) / lost, 4) for mode in ("0.1", "0.15")}


def _task_body(prompt: TaskPrompt, reuse: Any, *, is_reversed: bool = False) -> dict[str, Any]:
    chunks = prompt.chunks[::-1] if is_reversed else prompt.chunks
    return {
        "messages": [
            {"role": "system", "content": _words(prompt.system)},
            {"role": "user", "content": _words(prompt.question)},
        ],
        "max_tokens": 1,
        "ragboost": {"documents": [{"text": _words(chunk)} for chunk in chunks], "reuse": reuse},
    }


def _words(ids: Sequence[int]) -> str:
    return " ".join(f"t{number}" for number in ids)

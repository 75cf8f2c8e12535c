"""Fine-tune a model for dependency attention (DepCache section 3.3).

    python -m scripts.finetune_dependency --model DIR --data questions.jsonl --out DIR2

Each line is {"question": ..., "answer": ..., "paths": [[entity, relation, entity, ...], ...]};
"system" adds a system message. The defaults are the paper's (6,000 questions: one epoch, 64 per
step, learning rate 2e-5). Prompts are formatted as by the engine, and DIR2/config.json marks the
model as tuned, so that `ragboost engine --model DIR2` uses dependency attention. All weights are
trained; gradients of a step accumulate over passes of `--micro-batch` prompts.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragboost.chunk_cache.fields import read_fields
from ragboost.config.model_directory import find_model
from ragboost.engine.loading import TUNED
from ragboost.engine.tokenizer import ChatTokenizer
from ragboost.graph.conversation import PromptWriter
from ragboost.graph.layout import DepPrompt, LinearNode
from ragboost.graph.request import FIELD, GraphFields
from research.dependency_tuning import TuningExample, answer_loss, collate


def read_examples(path: Path, tokenizer: Any, *, end: list[int]) -> list[TuningExample]:
    """Return the lines of a file as prompts with answers; `end` is appended to each answer."""
    chat = ChatTokenizer(tokenizer)
    writer, examples = PromptWriter(chat), []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        row = json.loads(line)
        graph = read_fields(GraphFields, {"paths": row["paths"]}, name=FIELD)
        messages = [{"role": "user", "content": row["question"]}]
        if "system" in row:
            messages.insert(0, {"role": "system", "content": row["system"]})
        prompt = writer.prompt(graph.relation_paths(), messages)
        answer = (*chat.encode(row["answer"], add_special_tokens=False), *end)
        *before, task = prompt.nodes
        assert isinstance(task, LinearNode), "the last node is the task"
        task = LinearNode(task.name, (*task.tokens, *answer), task.depends_on)
        examples.append(TuningExample(DepPrompt((*before, task)), {task.name: len(answer)}))
    return examples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="name or directory")
    parser.add_argument("--data", type=Path, required=True, help="JSONL file of questions")
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument(
        "--positions",
        choices=("depth", "preorder"),
        default="depth",
        help="position ids of the paths",
    )
    parser.add_argument("--epochs", type=int, default=1, help="passes over the data")
    parser.add_argument("--batch", type=int, default=64, help="prompts per step")
    parser.add_argument("--micro-batch", type=int, default=4, help="prompts per forward pass")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the weights"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    directory = find_model(args.model)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=dtype)
    model.to(args.device).train()
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    examples = read_examples(args.data, tokenizer, end=end)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
    rng, begin = random.Random(args.seed), time.monotonic()
    for epoch in range(args.epochs):
        rng.shuffle(examples)
        for start in range(0, len(examples), args.batch):
            batch, losses = examples[start : start + args.batch], []
            for first in range(0, len(batch), args.micro_batch):
                part = batch[first : first + args.micro_batch]
                tensors = collate(part, positions=args.positions, dtype=dtype)
                loss = answer_loss(model, type(tensors)(*(t.to(args.device) for t in tensors)))
                (loss * len(part) / len(batch)).backward()
                losses.append(loss.detach() * len(part) / len(batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            row = {
                "epoch": epoch + 1,
                "examples": start + len(batch),
                "loss": round(float(sum(losses)), 4),
                "seconds": round(time.monotonic() - begin, 1),
            }
            print(json.dumps(row), file=sys.stderr, flush=True)
    setattr(model.config, TUNED, args.positions)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()

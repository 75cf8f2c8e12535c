"""Train the reference model of the chunk-reuse benchmarks from scratch.

    python -m scripts.train_reference_model --out benchmarks/models/reference
    python -m scripts.train_reference_model --size large --device cuda --out DIR

Trains on the tasks of `research.tasks`. Seeded; writes config.json, model.safetensors (fp16) and
training_log.jsonl. The small model takes about 25 minutes on one core. docs/lab/chunk-cache.md
explains why embeddings start with standard deviation 1 and shared components.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from research import tasks

SIZES = {
    "small": {"hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4},
    "large": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8},
}
SHAPES = {  # (share of the steps, documents, tokens per document)
    "small": ((0.12, 4, 6), (0.15, 6, 8), (0.73, 8, 12)),
    "large": ((0.15, 4, 12), (0.15, 8, 32), (0.70, 16, 128)),
}
QUESTIONS = ("local", "anaphora", "two_hop", "update", "compare") * 2
IGNORE = -100


class Float32Muon(torch.optim.Optimizer):
    """Muon with its Newton-Schulz iteration in the dtype of the parameters.

    `torch.optim.Muon` iterates in bfloat16, which a CPU without such units multiplies 28 times
    slower (AVX2, measured).
    """

    def __init__(self, params, *, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                grad, state = parameter.grad, self.state[parameter]
                moment = state.setdefault("moment", torch.zeros_like(grad))
                moment.lerp_(grad, 1 - group["momentum"])
                update = orthogonal(grad.lerp(moment, group["momentum"]))
                rate = group["lr"] * max(1, grad.shape[0] / grad.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return a nearly orthogonal matrix with the same singular vectors."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.775 * gram + 2.0315 * gram @ gram) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def build_model(size: str, *, seed: int, layers: int | None = None) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    shape = SIZES[size] | ({} if layers is None else {"num_hidden_layers": layers})
    config = LlamaConfig(
        vocab_size=tasks.VOCAB_SIZE,
        intermediate_size=2 * shape["hidden_size"],
        num_key_value_heads=shape["num_attention_heads"] // 2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=tasks.SYSTEM[0],
        eos_token_id=tasks.SYSTEM[3],
        pad_token_id=None,
        **shape,
    )
    model = LlamaForCausalLM(config)
    part = torch.randn(2 * tasks.VOCAB_SIZE, shape["hidden_size"])
    with torch.no_grad():
        for token, parts in enumerate(tasks.composition()):
            model.model.embed_tokens.weight[token] = part[list(parts)].sum(0) / len(parts) ** 0.5
    return model


def make_batch(rng: np.random.Generator, *, prompts: int, documents: int, length: int):
    """Draw prompts of documents and ten questions, each answered at its own last token.

    Returns:
        (prompts, tokens) each: token ids; answers; and targets of hidden states: early, the
        antecedent at each IT token; named, what a token itself names (an IT its value, a question
        its argument); late, the intermediate result at each question token.
    """
    world = tasks.make_world(rng, prompts, documents=documents, length=length)
    asked = [tasks.ask(rng, world, task=QUESTIONS[i]) for i in rng.permutation(len(QUESTIONS))]
    tokens = np.concatenate(
        [
            np.tile(tasks.SYSTEM, (prompts, 1)),
            world.documents.reshape(prompts, -1),
            *(one.tokens for one in asked),
        ],
        axis=1,
    )
    answers, early, named, late = (np.full_like(tokens, IGNORE) for _ in range(4))
    rows, docs = np.nonzero(world.it_slot)
    place = len(tasks.SYSTEM) + docs * length + world.it_slot[rows, docs]
    early[rows, place] = tasks.first_id("entity") + world.antecedent[rows, docs]
    named[rows, place] = tasks.first_id("value") + world.value[rows, docs]
    at = len(tasks.SYSTEM) + documents * length
    for one in asked:
        end = at + one.tokens.shape[1]
        named[:, at:end], late[:, at:end] = one.argument, one.hop
        answers[:, end - 1] = np.where(one.answer >= 0, one.answer, IGNORE)
        at = end
    return (torch.from_numpy(array) for array in (tokens, answers, early, named, late))


def losses(model, batch, device, *, antecedent_layer: int):
    tokens, answers, early, named, late = (part.to(device) for part in batch)
    out = model.model(tokens, output_hidden_states=True, use_cache=False)

    def loss(hidden, target):
        keep = target != IGNORE
        return F.cross_entropy(model.lm_head(hidden[keep]).float(), target[keep])

    norm = model.model.norm
    hidden = out.hidden_states
    return (
        loss(out.last_hidden_state, answers),
        # Without the second term attention suppresses what a token itself names, and accuracy of
        # questions by value stays at chance.
        sum(loss(norm(hidden[antecedent_layer]), one) for one in (early, named)) / 2,
        loss(norm(hidden[-2]), late),
    )


@torch.no_grad()
def accuracy(model, *, documents: int, length: int, device, prompts: int = 200) -> dict[str, float]:
    scores = {}
    for task in tasks.TASKS:
        drawn = tasks.make_prompts(task, prompts, seed=10_000, documents=documents, length=length)
        ids = torch.tensor([prompt.tokens for prompt in drawn], device=device)
        answer = torch.tensor([prompt.answer for prompt in drawn], device=device)
        logits = model(ids, logits_to_keep=1, use_cache=False).logits[:, -1]
        scores[task] = round((logits.argmax(-1) == answer).float().mean().item(), 3)
    return scores


def learning_rate(progress: float) -> float:
    warm = min(1.0, progress / 0.02)
    return warm * min(1.0, max(0.02, (1 - progress) / 0.4))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--size", choices=sorted(SIZES), default="small", help="model size")
    parser.add_argument("--layers", type=int, help="layers; default: those of the size")
    parser.add_argument(
        "--antecedent-layer", type=int, default=2, help="hidden state that the early loss reads"
    )
    parser.add_argument("--steps", type=int, default=2200, help="training steps")
    parser.add_argument("--prompts", type=int, default=48, help="prompts per step")
    parser.add_argument(
        "--hop-weight", type=float, default=0.0, help="weight of the hop loss; 0 only measures it"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--resume",
        type=int,
        default=0,
        metavar="STEP",
        help="continue from the weights in --out, saved after this step; moments begin anew",
    )
    args = parser.parse_args()

    model = build_model(args.size, seed=args.seed, layers=args.layers)
    if args.resume:
        model = LlamaForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    model = model.to(args.device)
    rng = np.random.default_rng(args.seed if args.resume == 0 else (args.seed, args.resume))
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    optimizers = [
        Float32Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    base = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    args.out.mkdir(parents=True, exist_ok=True)
    log = (args.out / "training_log.jsonl").open("a" if args.resume else "w", encoding="utf-8")
    begin, seen = time.process_time(), 0
    for step in range(args.resume, args.steps):
        progress = step / args.steps
        bounds = np.cumsum([share for share, _, _ in SHAPES[args.size]])
        _, documents, length = SHAPES[args.size][int(np.searchsorted(bounds, progress, "right"))]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, base, strict=True):
            group["lr"] = rate * learning_rate(progress)
        batch = make_batch(rng, prompts=args.prompts, documents=documents, length=length)
        answer, early, late = losses(
            model, batch, args.device, antecedent_layer=args.antecedent_layer
        )
        (answer + 0.3 * early + args.hop_weight * late).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen += args.prompts * (len(tasks.SYSTEM) + documents * length + 12)
        if step % 100 == 99 or step == args.steps - 1:
            row = {
                "step": step + 1,
                "tokens": seen,
                "cpu_s": round(time.process_time() - begin),
                "documents": documents,
                "loss": round(answer.item(), 4),
                "antecedent_loss": round(early.item(), 4),
                "hop_loss": round(late.item(), 4),
            }
            if step % 500 == 499 or step == args.steps - 1:
                row["accuracy"] = accuracy(
                    model, documents=documents, length=length, device=args.device
                )
                model.save_pretrained(args.out)
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps(row), flush=True)
    model.half().save_pretrained(args.out)


if __name__ == "__main__":
    main()

"""Train the reference models of the dependency-attention benchmark.

    python -m scripts.train_graph_model --out benchmarks/models/graph

Trains a base model from scratch with ordinary attention over flattened paths, and fine-tunes copies
of it for dependency attention, on the tasks of `research.graph_tasks`. Seeded. Writes OUT/base,
OUT/depth and OUT/preorder (fp16) and appends to OUT/training_log.jsonl.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from research import graph_tasks
from research.dependency_tuning import answer_loss, collate

HINT_WEIGHT = 0.2
STEPS = {"base": 450, "depth": 170, "preorder": 160}
ROUNDS = 8
"""Questions per task and graph in training."""


def build_model(seed: int, *, width: int = 128, layers: int = 4) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=graph_tasks.VOCAB_SIZE,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=graph_tasks.SYSTEM[0],
        eos_token_id=graph_tasks.SYSTEM[3],
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    # Embeddings of standard deviation 1 with shared components: see docs/lab/chunk-cache.md.
    part = torch.randn(2 * graph_tasks.VOCAB_SIZE, width)
    with torch.no_grad():
        for token, parts in enumerate(graph_tasks.composition()):
            model.model.embed_tokens.weight[token] = part[list(parts)].sum(0) / len(parts) ** 0.5
    return model


def make_optimizers(model: LlamaForCausalLM, *, scale: float) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    return [
        torch.optim.Muon(matrices, lr=0.02 * scale, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=3e-3 * scale, betas=(0.9, 0.95), weight_decay=0.0),
    ]


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, *, is_tree: bool, positions: str) -> dict[str, float]:
    cases = graph_tasks.draw_cases(150, seed=10_000)
    batch = collate([case.example(is_tree=is_tree) for case in cases], positions=positions)
    found = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=batch.mask,
        use_cache=False,
    ).logits.argmax(-1)
    asked = batch.labels != -100
    right = (found == batch.labels)[asked].view(len(cases), -1).float().mean(0)
    return dict(zip(graph_tasks.TASKS, [round(x, 3) for x in right.tolist()], strict=True))


HINTS = {
    "root": graph_tasks.NUM_ENTITIES,
    "before": graph_tasks.NUM_RELATIONS,
    "target": graph_tasks.NUM_ENTITIES,
    "relation": graph_tasks.NUM_RELATIONS,
    "about": graph_tasks.NUM_ENTITIES,
}


def hints(batch):
    """Return the targets of the auxiliary heads by name, (prompts, tokens) each, -100 for none.

    At an edge: its path's root, the relation before it, its own target and relation; at a
    question's last token: the entity that it is about.
    """
    entity, edge, relation, about = map(graph_tasks.first_id, ("entity", "edge", "relation", "QE"))
    ids, nothing = batch.input_ids, torch.full_like(batch.input_ids, -100)
    one, two = ids.roll(1, 1), ids.roll(2, 1)

    def is_edge(tokens):
        return (tokens >= edge) & (tokens < relation)

    second = is_edge(ids) & is_edge(one)
    root = torch.where(second, two, one) - entity
    own, earlier = ids - edge, one - edge
    asked = (batch.labels != -100) & (one >= about)
    return {
        "root": torch.where(is_edge(ids), root, nothing),
        "before": torch.where(second, earlier // graph_tasks.NUM_ENTITIES, nothing),
        "target": torch.where(is_edge(ids), own % graph_tasks.NUM_ENTITIES, nothing),
        "relation": torch.where(is_edge(ids), own // graph_tasks.NUM_ENTITIES, nothing),
        "about": torch.where(asked, (one - about) % graph_tasks.NUM_ENTITIES, nothing),
    }


def base_loss(model, batch, heads):
    """Return the loss of the answers, and the total with the auxiliary losses.

    Auxiliary heads read the hidden states after the second layer and are discarded after training.
    Without them the model takes far longer to learn to follow a path, and without those of an
    edge's own target and relation it loses this information.
    """
    out = model.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=batch.mask,
        output_hidden_states=True,
        use_cache=False,
    )
    keep = batch.labels != -100
    logits = model.lm_head(out.last_hidden_state[keep]).float()
    answers = F.cross_entropy(logits, batch.labels[keep])
    early, targets = model.model.norm(out.hidden_states[2]), hints(batch)
    losses = [
        F.cross_entropy(heads[name](early[target != -100]), target[target != -100])
        for name, target in targets.items()
    ]
    return answers, answers + HINT_WEIGHT * sum(losses)


def train(model, *, phase, steps, prompts, seed, log):
    """Train in place: `base` with ordinary attention, the other phases on trees."""
    is_tree = phase != "base"
    positions = phase if is_tree else "depth"
    rng = np.random.default_rng(seed)
    optimizers = make_optimizers(model, scale=0.6 if is_tree else 1.0)
    width = model.config.hidden_size
    heads = torch.nn.ModuleDict({name: torch.nn.Linear(width, n) for name, n in HINTS.items()})
    if not is_tree:
        optimizers.append(torch.optim.AdamW(heads.parameters(), lr=3e-3))
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    base = [group["lr"] for group in groups]
    begin, seen = time.process_time(), 0
    for step in range(steps):
        progress = step / steps
        warm = min(1.0, progress / 0.02) * min(1.0, max(0.02, (1 - progress) / 0.4))
        for group, rate in zip(groups, base, strict=True):
            group["lr"] = rate * warm
        cases = [graph_tasks.draw_case(rng, rounds=ROUNDS) for _ in range(prompts)]
        batch = collate([case.example(is_tree=is_tree) for case in cases], positions=positions)
        if is_tree:
            loss = whole = answer_loss(model, batch)
        else:
            loss, whole = base_loss(model, batch, heads)
        whole.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seen += batch.input_ids.numel()
        if step % 50 == 49 or step == steps - 1:
            row = {
                "phase": phase,
                "step": step + 1,
                "tokens": seen,
                "cpu_s": round(time.process_time() - begin),
                "loss": round(loss.item(), 4),
            }
            if step % 100 == 99 or step == steps - 1:
                row["accuracy"] = accuracy(model, is_tree=is_tree, positions=positions)
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--phase", choices=tuple(STEPS), default="base", help="first phase to run")
    parser.add_argument("--steps", type=int, help="steps per phase")
    parser.add_argument("--prompts", type=int, default=10, help="graphs per step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    phases = list(STEPS)[list(STEPS).index(args.phase) :]
    with (args.out / "training_log.jsonl").open("a", encoding="utf-8") as log:
        for phase in phases:
            model = (
                build_model(args.seed)
                if phase == "base"
                else LlamaForCausalLM.from_pretrained(args.out / "base", dtype=torch.float32)
            )
            train(
                model,
                phase=phase,
                steps=args.steps or STEPS[phase],
                prompts=args.prompts,
                seed=args.seed + list(STEPS).index(phase),
                log=log,
            )
            if phase != "base":
                model.config.ragboost_dependency = phase
            model.half().save_pretrained(args.out / phase)


if __name__ == "__main__":
    main()

"""Train the reference model of the dependency-attention benchmark from scratch, with ordinary
attention over written-out paths, or tune a copy of it for dependency attention.

    python scripts/train_graph_model.py --out benchmarks/graph_model --phase base
    python scripts/train_graph_model.py --out benchmarks/graph_model --phase depth
    python scripts/train_graph_model.py --out benchmarks/graph_model --phase preorder

Seeded. Writes DIR/PHASE (fp16) and appends to DIR/training_log.jsonl. The tasks are those of
`ragboost.chunk_cache.eval.graph_tasks`.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import LlamaConfig, LlamaForCausalLM

from ragboost.chunk_cache.dependency.tuning import answer_loss, collate
from ragboost.chunk_cache.eval import graph_tasks

CURRICULUM = ((0.10, 1, 2, 1), (0.25, 2, 2, 2), (1.01, 3, 3, 2))
"""(share of the steps up to here, roots, relations of each, relations of their targets)"""


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
    # Embeddings of standard deviation 1 that share their parts; docs/chunk-cache.md says why.
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


def hints(batch):
    """What hidden states inside the base model should say, by slot: of an edge its path's root, of
    a second edge the relation before it too, of a question's last token whom it is about."""
    kinds = {
        name: graph_tasks.first_id(name) for name in ("entity", "edge", "relation", "QE", "QT")
    }
    root, before = torch.full_like(batch.input_ids, -100), torch.full_like(batch.input_ids, -100)
    ids = batch.input_ids
    is_edge = (ids >= kinds["edge"]) & (ids < kinds["relation"])
    for back in (1, 2):
        earlier = ids.roll(back, 1)
        is_root = (earlier >= kinds["entity"]) & (earlier < kinds["edge"])
        is_second = is_edge & is_edge.roll(1, 1) if back == 2 else is_edge
        root = torch.where(is_second & is_root, earlier, root)
    relation = (ids.roll(1, 1) - kinds["edge"]).div(graph_tasks.NUM_ENTITIES, rounding_mode="floor")
    before = torch.where(is_edge & is_edge.roll(1, 1), kinds["relation"] + relation, before)
    asked = (batch.labels != -100) & (ids.roll(1, 1) >= kinds["QE"])
    about = (ids.roll(1, 1) - kinds["QE"]) % graph_tasks.NUM_ENTITIES + kinds["entity"]
    return torch.where(asked, about, root), before


def base_loss(model, batch):
    """The answers' loss, and with less weight that of the hints after the second layer: without
    them heads that look back along a path take far longer to appear."""
    out = model.model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=batch.mask,
        output_hidden_states=True,
        use_cache=False,
    )

    def loss(hidden, target):
        keep = target != -100
        return F.cross_entropy(model.lm_head(hidden[keep]).float(), target[keep])

    early = model.model.norm(out.hidden_states[2])
    root, before = hints(batch)
    answers = loss(out.last_hidden_state, batch.labels)
    return answers, answers + 0.15 * (loss(early, root) + loss(early, before))


def train(model, *, steps, prompts, seed, scale, is_tree, positions, log, phase):
    """Train in place; tuning uses the last stage of the curriculum only."""
    rng = np.random.default_rng(seed)
    optimizers = make_optimizers(model, scale=scale)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    base = [group["lr"] for group in groups]
    begin, seen = time.process_time(), 0
    for step in range(steps):
        progress = step / steps
        shape = next(s for s in CURRICULUM if is_tree or progress < s[0])
        _, roots, first, second = CURRICULUM[-1] if is_tree else shape
        warm = min(1.0, progress / 0.02) * min(1.0, max(0.02, (1 - progress) / 0.4))
        for group, rate in zip(groups, base, strict=True):
            group["lr"] = rate * warm
        examples = [
            graph_tasks.draw_case(rng, roots=roots, first=first, second=second, rounds=4).example(
                is_tree=is_tree
            )
            for _ in range(prompts)
        ]
        batch = collate(examples, positions=positions)
        if is_tree:
            loss = whole = answer_loss(model, batch)
        else:
            loss, whole = base_loss(model, batch)
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
            if step % 200 == 199 or step == steps - 1:
                row["accuracy"] = accuracy(model, is_tree=is_tree, positions=positions)
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--phase", choices=("base", "depth", "preorder"), required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--prompts", type=int, default=24, help="graphs per step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    is_tree = args.phase != "base"
    model = (
        LlamaForCausalLM.from_pretrained(args.out / "base", dtype=torch.float32)
        if is_tree
        else build_model(args.seed)
    )
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "training_log.jsonl").open("a", encoding="utf-8") as log:
        train(
            model,
            steps=args.steps or (150 if is_tree else 1500),
            prompts=args.prompts,
            seed=args.seed + is_tree,
            scale=0.2 if is_tree else 1.0,
            is_tree=is_tree,
            positions="depth" if args.phase == "base" else args.phase,
            log=log,
            phase=args.phase,
        )
    if is_tree:
        model.config.ragboost_dependency = args.phase
    model.half().save_pretrained(args.out / args.phase)


if __name__ == "__main__":
    main()

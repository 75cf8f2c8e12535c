"""Train the models of the order benchmark: one knows positions only, one learns hints after that.

    OMP_NUM_THREADS=1 python -m scripts.train_order_model --out benchmarks/models/order

Trains on the conversations of `research.order_tasks`: the first document that mentions the animal
wins. The model `plain` is trained from scratch without hints; `hints` is that model, trained
further with reordered documents whose order hints restore. Seeded. Writes OUT/plain and OUT/hints
(weights in fp16, tokenizer) and appends to OUT/training_log.jsonl.
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from research.order_tasks import ANIMALS, COLOURS, NUM_LABELS, WORDS, draw_conversation

IGNORE = -100
END, USER, ASSISTANT, UNKNOWN = "<end>", "<user>", "<assistant>", "<unknown>"
PHRASES = (
    *WORDS.order_template.split(" {order} "),
    *WORDS.location_template.split(" {document} "),
)
TEMPLATE = (
    "{% for one in messages %}"
    "{{ ('<user>' if one['role'] == 'user' else '<assistant>') + ' ' + one['content'] }}"
    "{{ ' <end> ' if one['role'] == 'assistant' else ' ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def words() -> list[str]:
    """Return the vocabulary: phrases of the hints and whole facts are single tokens."""
    labels = [WORDS.label_template.replace("{label}", str(i)) for i in range(NUM_LABELS)]
    facts = [f"{animal}:{colour}" for animal in ANIMALS for colour in COLOURS]
    questions = [f"{animal}?" for animal in ANIMALS]
    return [END, USER, ASSISTANT, UNKNOWN, ">>", *PHRASES, *labels, *facts, *questions, *COLOURS]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of words between white space."""
    vocabulary = {word: number for number, word in enumerate(words())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(list(PHRASES))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def composition(names: list[str]) -> list[tuple[str, ...]]:
    """Return the components of each token's first embedding: tokens about one animal or colour
    share a component, see docs/lab/chunk-cache.md."""
    parts = []
    for name in names:
        if ":" in name:
            parts.append(("fact", *name.split(":")))
        elif name.endswith("?"):
            parts.append(("question", name[:-1]))
        else:
            parts.append((name,))
    return parts


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    names = words()
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    parts: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for token, components in enumerate(composition(names)):
            for one in components:
                parts.setdefault(one, torch.randn(config.hidden_size))
            total = torch.stack([parts[one] for one in components]).sum(0)
            model.model.embed_tokens.weight[token] = total / len(components) ** 0.5
    return model


class Muon:
    """Momentum with orthogonalised updates, for matrices; in float32 and by shape, since
    `torch.optim.Muon` takes most of the time of a small model on a CPU.

    Args:
        matrices: the parameters.
        lr: learning rate; may be changed between steps.
    """

    def __init__(self, matrices: list[torch.nn.Parameter], *, lr: float) -> None:
        self.lr = lr
        self._groups: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            self._groups.setdefault(matrix.shape, []).append(matrix)
        self._momentum = {
            shape: torch.zeros(len(group), *shape) for shape, group in self._groups.items()
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters and forget their gradients."""
        for shape, group in self._groups.items():
            gradient = torch.stack([one.grad for one in group])
            momentum = self._momentum[shape].lerp_(gradient, 0.05)
            update = orthogonalised(gradient.lerp(momentum, 0.95))
            scale = self.lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for one, change in zip(group, update, strict=True):
                one.mul_(1 - self.lr * 0.01).add_(change, alpha=-scale)
                one.grad = None


def orthogonalised(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of each matrix near 1, by five Newton-Schulz iterations."""
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if is_tall else x


class Batches:
    """Draws training batches.

    Args:
        tokenizer: of the model.
        has_hints: see `draw_conversation`.
        seed: of the conversations.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, has_hints: bool, seed: int) -> None:
        self._tokenizer = tokenizer
        self._has_hints = has_hints
        self._rng = np.random.default_rng(seed)
        ids = tokenizer.get_vocab()
        self._assistant = ids[ASSISTANT]
        self._end = ids[END]
        first = ids[f"{ANIMALS[0]}:{COLOURS[0]}"]
        self._facts = range(first, first + len(ANIMALS) * len(COLOURS))
        first_label = ids[WORDS.label_template.replace("{label}", "0")]
        self._labels = range(first_label, first_label + NUM_LABELS)

    def draw(self, size: int, *, turns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return token ids, answers, and at each label of a hint the fact it stands for."""
        texts = [self._text(turns) for _ in range(size)]
        rows = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        shape = (size, max(map(len, rows)))
        tokens = np.full(shape, self._end)
        answers, copies = np.full(shape, IGNORE), np.full(shape, IGNORE)
        for at, row in enumerate(rows):
            tokens[at, : len(row)] = row
            facts: dict[int, int] = {}
            for place, token in enumerate(row[:-1]):
                following = row[place + 1]
                if token == self._assistant:
                    answers[at, place], answers[at, place + 1] = following, self._end
                elif token in self._labels:
                    if following in self._facts:
                        facts[token] = following
                    else:
                        copies[at, place] = facts[token]
        return torch.from_numpy(tokens), torch.from_numpy(answers), torch.from_numpy(copies)

    def _text(self, turns: int) -> str:
        messages = []
        for turn in draw_conversation(self._rng, turns=turns, has_hints=self._has_hints):
            messages.append({"role": "user", "content": turn.prompt})
            messages.append({"role": "assistant", "content": turn.answer})
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False))


def losses(model: LlamaForCausalLM, batch) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the loss of the answers, that of copies in the hints, and the share of right answers.

    The copies are read after the second layer; the second loss speeds up training.
    """
    tokens, answers, copies = batch
    out = model.model(tokens, output_hidden_states=True, use_cache=False)
    keep = answers != IGNORE
    logits = model.lm_head(out.last_hidden_state[keep])
    loss = F.cross_entropy(logits, answers[keep])
    is_colour = answers[keep] != model.config.eos_token_id
    right = (logits.argmax(-1) == answers[keep])[is_colour].float().mean().item()
    keep = copies != IGNORE
    if not keep.any():
        return loss, torch.zeros(()), right
    early = model.model.norm(out.hidden_states[2][keep])
    # Embeddings of facts share components, so that copying is learnt once and not per fact.
    names = F.linear(early, model.model.embed_tokens.weight.detach())
    return loss, F.cross_entropy(names, copies[keep]), right


class Phase(NamedTuple):
    """How one model is trained.

    Attributes:
        steps: training steps.
        size: conversations of three turns per step; more of fewer turns.
        rate: factor of the learning rates.
        turns: share of the steps after which conversations have two turns, and three.
    """

    steps: int
    size: int
    rate: float
    turns: tuple[float, float]


PHASES = {
    "plain": Phase(1000, 20, 1.0, (0.3, 0.5)),
    "hints": Phase(2000, 16, 0.7, (0.4, 0.6)),
}


def train(name: str, *, phase: Phase, seed: int, out: Path, log) -> None:
    """Train one model and save it, also every hundred steps."""
    tokenizer = build_tokenizer()
    has_hints = name == "hints"
    if has_hints:
        model = LlamaForCausalLM.from_pretrained(out / "plain", dtype=torch.float32)
    else:
        model = build_model(tokenizer, seed=seed)
    steps = phase.steps
    batches = Batches(tokenizer, has_hints=has_hints, seed=seed)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers" in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    muon = Muon(matrices, lr=0.02)
    adam = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    begin, seen, shares = time.process_time(), 0, []
    for step in range(steps):
        progress = step / steps
        warm = min(1.0, progress / 0.02) * min(1.0, max(0.02, (1 - progress) / 0.4))
        muon.lr = 0.02 * warm * phase.rate
        adam.param_groups[0]["lr"] = 3e-3 * warm * phase.rate
        turns = 1 + sum(progress > bound for bound in phase.turns)
        batch = batches.draw(3 * phase.size // turns, turns=turns)
        answer, copied, right = losses(model, batch)
        (answer + 0.5 * copied).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        adam.step()
        adam.zero_grad()
        seen += batch[0].numel()
        shares.append(right)
        if step % 50 == 49 or step == steps - 1:
            row = {
                "model": name,
                "step": step + 1,
                "turns": turns,
                "tokens": seen,
                "cpu_s": round(time.process_time() - begin),
                "loss": round(answer.item(), 4),
                "copy_loss": round(copied.item(), 4),
                "accuracy": round(float(np.mean(shares[-50:])), 4),
            }
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(json.dumps(row), flush=True)
        if step % 100 == 99 or step == steps - 1:
            copy.deepcopy(model).half().save_pretrained(out / name)
            tokenizer.save_pretrained(out / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--only", choices=tuple(PHASES), help="hints needs OUT/plain")
    parser.add_argument("--steps", type=int, help="training steps of each model")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "training_log.jsonl").open("a", encoding="utf-8") as log:
        for name in (args.only,) if args.only else PHASES:
            phase = PHASES[name]
            if args.steps is not None:
                phase = phase._replace(steps=args.steps)
            train(name, phase=phase, seed=args.seed, out=args.out, log=log)


if __name__ == "__main__":
    main()

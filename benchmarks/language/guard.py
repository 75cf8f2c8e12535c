"""Watch what chunk reuse and hints do to a language model: fixed prompts against recorded values.

    python -m benchmarks.language.guard              # compare; exit code 1 if something differs
    python -m benchmarks.language.guard --write      # record, after a change that is meant

Short documents made by rule, ten prompts in the retriever's order and ten that the Booster has
reordered with an order hint. Each is answered by full attention and by the default of chunk reuse;
what is recorded is the first token of both, the log-probability of full attention's, and the
divergence of reuse. Processors differ in the last bits, which may change a selected token here and
there: single prompts may differ, most must not, and neither must the means.
"""

import json
import random
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.language.arms import ArmRunner
from benchmarks.language.cases import LanguageCase
from ragboost.chunk_cache.eval.arms import FULL
from ragboost.chunk_cache.eval.full_answer import kl_divergence
from ragboost.chunk_cache.selection import DEFAULT_POLICY, DEFAULT_RATIO
from ragboost.config import EngineSettings
from ragboost.engine.loading import load_model
from ragboost.types import Document

MODEL = Path("smollm2-135m")
RECORDED = Path(__file__).with_name("guard.json")
NUM_PROMPTS, NUM_DOCUMENTS = 20, 5
SYSTEMATIC = 0.9  # share of the prompts that must be as recorded
MAX_LOGPROB_SHIFT = 0.004  # nats, of one prompt; another order hint shifts it by some hundredths
MAX_KL_SHIFT = 0.1  # of the recorded mean, and of one prompt's mean deviation
_TOWNS = ("Lund", "Bergen", "Turku", "Vaasa", "Odense", "Tartu", "Narvik", "Visby")
_NAMES = ("Tilda Brask", "Ines Okafor", "Maren Varga", "Ruth Moreau", "Yara Drago", "Selma Quist")
_PETS = ("Odin", "Biscuit", "Pepper", "Hazel", "Clover", "Mocha")
_BOATS = ("a red ferry", "two tugs", "an old schooner", "a lightship", "three trawlers")


@dataclass(frozen=True, slots=True)
class Watched:
    """What is recorded of a prompt."""

    first: int  # full attention's first token
    logprob: float  # its log-probability
    first_reused: int  # chunk reuse's
    kl: float  # of chunk reuse's first token to full attention, in nats


def make_prompts() -> list[LanguageCase]:
    """Return the prompts, the same everywhere; the later half follow a request with the same
    documents in another order."""
    cases = []
    for number in range(NUM_PROMPTS):
        rng = random.Random(f"guard-{number}")
        towns, names = rng.sample(_TOWNS, NUM_DOCUMENTS), rng.sample(_NAMES, NUM_DOCUMENTS)
        pets = rng.sample(_PETS, NUM_DOCUMENTS)
        documents = tuple(
            Document(
                f"{'It' if at % 2 else town} has {rng.choice(_BOATS)} and {rng.randint(2, 9)} "
                f"piers. The harbour was built in {rng.randint(1650, 1950)}. {names[at]} is the "
                f"harbour master of {town}. The dog of the harbour master is called {pets[at]}.",
                id=str(at + 1),
                title=f"The harbour of {town}",
            )
            for at, town in enumerate(towns)
        )
        asked = rng.randrange(NUM_DOCUMENTS)
        question = f"What is the dog of {names[asked]} called?"
        earlier = tuple(rng.sample(documents, NUM_DOCUMENTS)) if number >= NUM_PROMPTS // 2 else ()
        cases.append(
            LanguageCase(f"guard-{number}", question, (pets[asked],), documents, earlier=earlier)
        )
    return cases


def watch(runner: ArmRunner, cases: Sequence[LanguageCase]) -> list[Watched]:
    """Answer prompts."""
    found = []
    for case in cases:
        full, reused = runner.first_logits(case, [FULL, (DEFAULT_POLICY, DEFAULT_RATIO)])
        first = int(full.argmax())
        logprob = float(full.float().log_softmax(-1)[first])
        kl = kl_divergence(reused, full)
        found.append(Watched(first, round(logprob, 5), int(reused.argmax()), round(kl, 5)))
    return found


def differences(found: Sequence[Watched], recorded: Sequence[Watched]) -> list[str]:
    """Return what differs by more than other processors do, as sentences."""
    pairs = list(zip(found, recorded, strict=True))
    same = {
        "full attention's first token": [a.first == b.first for a, b in pairs],
        "its log-probability": [abs(a.logprob - b.logprob) <= MAX_LOGPROB_SHIFT for a, b in pairs],
        "the first token with chunk reuse": [a.first_reused == b.first_reused for a, b in pairs],
    }
    said = [
        f"{name} is as recorded in {sum(equal)} of {len(pairs)} prompts"
        for name, equal in same.items()
        if fmean(equal) < SYSTEMATIC
    ]
    mean = fmean(watched.kl for watched in recorded)
    now = fmean(watched.kl for watched in found)
    apart = fmean(abs(a.kl - b.kl) for a, b in pairs)
    if abs(now - mean) > MAX_KL_SHIFT * mean or apart > MAX_KL_SHIFT * mean:
        said.append(
            f"chunk reuse diverges by {now:.4f} nats where {mean:.4f} were recorded, "
            f"{apart:.4f} apart in a prompt"
        )
    return said


def read_recorded() -> list[Watched]:
    """Return the recorded values.

    Raises:
        ValueError: they are those of another default.
    """
    fields = json.loads(RECORDED.read_text(encoding="utf-8"))
    default = [DEFAULT_POLICY, DEFAULT_RATIO]
    if fields["default"] != default:
        raise ValueError(f"recorded for {fields['default']}, the default is {default}: --write")
    return [Watched(**row) for row in fields["prompts"]]


def make_runner() -> ArmRunner:
    """Load the model."""
    torch.set_num_threads(1)
    loaded = load_model(EngineSettings(model=MODEL))
    return ArmRunner(loaded, stored="alone")


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="record what is measured")
    args = parser.parse_args()
    found = watch(make_runner(), make_prompts())
    if args.write:
        rows = ",\n  ".join(json.dumps(asdict(watched)) for watched in found)
        default = json.dumps([DEFAULT_POLICY, DEFAULT_RATIO])
        RECORDED.write_text(f'{{"default": {default}, "prompts": [\n  {rows}\n]}}\n', "utf-8")
    said = differences(found, read_recorded())
    print(*said or ["as recorded"], sep="\n")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())

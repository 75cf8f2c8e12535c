"""Answer a case with each selection policy and ratio, as the embedded engine does.

Prompts are the product's: the Booster writes the documents, in the retriever's order, behind the
system message and before the question, the model's chat template frames them, and the engine finds
the chunks in the tokens. Each case has a chunk store of its own.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import torch

from benchmarks.language.cases import LanguageCase
from ragboost.booster import Booster
from ragboost.chunk_cache.core.fill import fill_steps
from ragboost.chunk_cache.core.options import ReuseDefaults
from ragboost.chunk_cache.core.prompt_plan import find_chunks, plan_prompt, plan_stored
from ragboost.chunk_cache.core.request import EngineChunkRequest
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.metrics import kl_divergence
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.precompute.prime import measure
from ragboost.chunk_cache.selection import MEASURED
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.config import DedupSettings, HintSettings, OrderingSettings, Settings
from ragboost.engine.http.prompts import Prompts
from ragboost.engine.http.schemas import ChatCompletionRequest
from ragboost.engine.loading import LoadedModel
from ragboost.rewriting import chunk_positions
from ragboost.text_scores import contains, word_f1
from ragboost.types import Document

SYSTEM = "Answer the question from the documents, in as few words as possible."  # eval-order's
MAX_ANSWER_TOKENS = 24
NEIGHBOURS = 4  # documents behind which a chunk is measured, for the policies that need it
AS_RETRIEVED = Settings(
    ordering=OrderingSettings(enabled=False),
    dedup=DedupSettings(enabled=False),
    hints=HintSettings(order=False, location=False),
)
FULL, REUSE = ("full", 1.0), ("reuse", 0.0)
Stored = Literal["alone", "captured"]
Arm = tuple[str, float]  # policy and ratio


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case in one arm."""

    policy: str
    ratio: float
    kl: float  # of the first token to full attention
    kl_answer: float  # mean over the tokens of full attention's answer
    same_first: bool  # the first token is full attention's
    same_answer: bool
    text: str
    f1: float
    contains: float
    computed: float  # share of the prompt's tokens
    cpu_s: float  # of the prefill with look-up, selection and question


class ArmRunner:
    """Answers cases with one model."""

    def __init__(self, loaded: LoadedModel, *, stored: Stored) -> None:
        assert loaded.adapter is not None, loaded.reuse_refusal
        self._loaded, self._adapter, self._stored = loaded, loaded.adapter, stored
        # The engine's attention is for its packed batches; what is decoded here is one sequence.
        self._adapter.model.set_attn_implementation("sdpa")
        self._adapter.install()
        self._prompts = Prompts(loaded, reuse=ReuseDefaults(is_approx=True))

    def run(self, case: LanguageCase, arms: Sequence[Arm]) -> list[Outcome]:
        """Return the outcome of each arm, full attention's first."""
        reuse = ChunkReuse(self._adapter, TieredStore(host_bytes=4 << 30))
        tokens, chunks = self.prompt(case.question, case.documents, case.history)
        self._store(reuse, case)
        if any(policy in MEASURED for policy, _ in arms):
            self._measure(reuse, tokens, chunks)
        outcomes: list[Outcome] = []
        expected: list[int] = []
        full = torch.empty(0)
        for policy, ratio in [FULL, *(arm for arm in arms if arm != FULL)]:
            begin = time.process_time()
            cache, logits, computed = self._fill(reuse, tokens, chunks, policy, ratio)
            cpu_s = time.process_time() - begin
            if policy == "full":
                expected = self._decode(cache.clone(), logits, position=len(tokens))
                full = self._follow(cache.clone(), logits, expected, position=len(tokens))
            rows = self._follow(cache.clone(), logits, expected, position=len(tokens))
            kl = [kl_divergence(row, right) for row, right in zip(rows, full, strict=True)]
            answer = self._decode(cache, logits, position=len(tokens))
            text = self._loaded.tokenizer.decode(answer).strip()
            outcomes.append(
                Outcome(
                    policy,
                    ratio,
                    kl=kl[0],
                    kl_answer=fmean(kl),
                    same_first=int(logits.argmax()) == int(full[0].argmax()),
                    same_answer=answer == expected,
                    text=text,
                    f1=word_f1(text, case.answers),
                    contains=contains(text, case.answers),
                    computed=computed / len(tokens),
                    cpu_s=cpu_s,
                )
            )
        return outcomes

    def _decode(self, cache: RequestCache, logits: torch.Tensor, *, position: int) -> list[int]:
        return self._adapter.decode(
            cache,
            logits,
            position=position,
            max_tokens=MAX_ANSWER_TOKENS,
            stop_ids=self._loaded.stop_ids,
        )

    def _follow(
        self, cache: RequestCache, logits: torch.Tensor, answer: Sequence[int], *, position: int
    ) -> torch.Tensor:
        """Return the logits before each token of an answer, (tokens, vocabulary), at least one;
        appends to the cache."""
        if len(answer) < 2:
            return logits[None]
        ids = torch.tensor([answer[:-1]])
        at = torch.arange(position, position + len(answer) - 1)[None]
        with torch.no_grad():
            out = self._adapter.model(ids, position_ids=at, past_key_values=cache, use_cache=True)
        return torch.cat([logits[None], out.logits[0]])

    def prompt(
        self,
        question: str,
        documents: Sequence[Document],
        history: Sequence[tuple[str, str]] = (),
    ) -> tuple[list[int], tuple[tuple[int, int], ...]]:
        """Return a prompt in tokens with the positions of its chunks."""
        context = Booster(AS_RETRIEVED).boost(question, documents)
        messages = [{"role": role, "content": text} for role, text in history]
        messages = [{"role": "system", "content": SYSTEM}, *messages, *context.messages()]
        fields: dict[str, Any] = {"messages": messages}
        fields = dict(
            chunk_positions.add_chunks(fields, context, message=len(messages) - 1, reuse="approx")
        )
        built = self._prompts.build(ChatCompletionRequest(**fields))
        assert built.chunks is not None, "asked for"
        return built.token_ids, built.chunks.chunks

    def _store(self, reuse: ChunkReuse, case: LanguageCase) -> None:
        """Store the chunks from earlier requests without its history: one for each document, or one
        with all of them in another order."""
        shuffled = list(case.documents)
        random.Random(case.id).shuffle(shuffled)
        alone = [[document] for document in case.documents]
        for documents in alone if self._stored == "alone" else [shuffled]:
            tokens, chunks = self.prompt("What are the documents about?", documents)
            cache, _, _ = self._fill(reuse, tokens, chunks, *FULL)
            start, end = chunks[0][0] if chunks else 0, len(tokens)
            reuse.keep(cache, tokens, chunks, num_system=start, num_exact=end)

    def _measure(
        self, reuse: ChunkReuse, tokens: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> None:
        """Measure each chunk behind others of its prompt, the policies' best case."""
        texts = [tokens[start:stop] for start, stop in chunks]
        for number, text in enumerate(texts):
            others = (texts[number + 1 :] + texts[:number])[:NEIGHBOURS]
            measure(reuse, tokens[: chunks[0][0]], text, neighbours=others)

    def _fill(
        self,
        reuse: ChunkReuse,
        tokens: list[int],
        chunks: tuple[tuple[int, int], ...],
        policy: str,
        ratio: float,
    ) -> tuple[RequestCache, torch.Tensor, int]:
        """Return the KV of a prompt, the logits of its last token and the number of computed
        tokens. What stands before the first chunk comes from the store, as from a prefix cache."""
        library, start = reuse.library, chunks[0][0] if chunks else 0
        prefix = library.find_beginning(tokens, start)
        prefix_tokens = 0 if prefix is None else start
        request = EngineChunkRequest(chunks, policy, ratio)
        if policy == "full":
            regime, request = library.regime_at(len(tokens)), EngineChunkRequest()
            plan = plan_stored(
                request,
                tokens,
                prefix_tokens=prefix_tokens,
                stored=(),
                regime=regime,
                is_whole=True,
            )
        else:
            keys = find_chunks(request, tokens, library)
            found = plan_prompt(
                request, tokens, prefix_tokens=prefix_tokens, keys=keys, library=library
            )
            if isinstance(found, str):
                raise RuntimeError(f"the engine would compute this prompt exactly: {found}")
            plan = replace(found, stop=len(tokens))
        steps = fill_steps(self._adapter, plan, prefix=prefix, backend=reuse.backend)
        filled = at_once(steps)
        assert filled.logits is not None, "the question is computed"
        return filled.cache, filled.logits, filled.counts.recomputed + filled.counts.computed

"""Answer a case with each selection policy and ratio, as the embedded engine does.

Prompts are the product's: the Booster writes the documents, in the retriever's order, behind the
system message and before the question, or behind it and before `Answer:`; the model's chat template
frames them, and the engine finds the chunks in the tokens. Each case has a chunk store of its own,
and one for each document of the corpus that all others are stored behind, as `policy@document`.
`shared/policy` and `last/policy` answer the prompt in another order (`ArmRunner.ordered`), and
`policy+last` computes the last document whole.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, Literal, NamedTuple

import torch

from benchmarks.language.cases import LanguageCase
from ragboost.booster import Booster
from ragboost.chunk_cache.core.fill import fill_steps
from ragboost.chunk_cache.core.prompt_plan import find_chunks, plan_prompt, plan_stored
from ragboost.chunk_cache.core.request import EngineChunkRequest, ReuseDefaults
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.chunk_cache.eval.arms import FULL, Arm, ArmOutcome, FilledArm, measure_arms
from ragboost.chunk_cache.eval.full_answer import FullAnswer
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.selection import DEFAULT_RATIO, MEASURED
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.config import DedupSettings, HintSettings, OrderingSettings, Settings
from ragboost.engine.http.prompts import Prompts
from ragboost.engine.http.schemas import ChatCompletionRequest
from ragboost.engine.loading import LoadedModel
from ragboost.requests import chunk_positions
from ragboost.types import Document
from ragboost.util.text_scores import contains, word_f1

SYSTEM = "Answer the question from the documents, in as few words as possible."  # eval-order's
STORING = "What are the documents about?"  # asked by requests that store documents
MAX_ANSWER_TOKENS = 24
NEIGHBOURS = 4  # documents behind which a chunk is measured, for the policies that need it
AS_RETRIEVED = Settings(
    ordering=OrderingSettings(enabled=False),
    dedup=DedupSettings(enabled=False),
    hints=HintSettings(order=False, location=False),
)
Stored = Literal["alone", "captured", "elsewhere", "primed"]


@dataclass(frozen=True, slots=True)
class Outcome(ArmOutcome):
    """One case in one arm, with its answer; None: another one than full attention's, not
    decoded."""

    text: str | None
    f1: float | None
    contains: float | None


class ArmName(NamedTuple):
    """What `order/policy@constant+last` means."""

    order: str
    policy: str
    constant: str = ""
    is_last_whole: bool = False

    @classmethod
    def of(cls, written: str) -> "ArmName":
        order, _, rest = written.rpartition("/")
        rest, _, last = rest.partition("+")
        policy, _, constant = rest.partition("@")
        return cls(order, policy, constant, last == "last")


class OrderedPrompt(NamedTuple):
    tokens: list[int]
    chunks: tuple[tuple[int, int], ...]
    num_cached: int = 0  # leading chunks that the prefix cache holds


class ArmRunner:
    """Answers cases with one model."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        stored: Stored,
        is_question_first: bool = False,
        answer_tokens: int = MAX_ANSWER_TOKENS,
        constants: Mapping[str, Document] | None = None,  # by name, of `policy@name`
    ) -> None:
        assert loaded.adapter is not None, loaded.reuse_refusal
        self._loaded, self._adapter, self._stored = loaded, loaded.adapter, stored
        self._is_question_first, self._answer_tokens = is_question_first, answer_tokens
        self._constants = constants or {}
        self._identity: Identity | None = None  # of the model's weights, read once
        self._beginnings = self._empty_store()
        self._identity = self._beginnings.library.identity
        self._prompts = Prompts(loaded, reuse=ReuseDefaults(is_approx=True))

    def run(
        self, case: LanguageCase, arms: Sequence[Arm], *, answers: bool = True
    ) -> list[Outcome]:
        """Return the outcome of each arm, behind full attention's of its order. All arms share the
        stored chunks, and those of an order what full attention says.

        Args:
            answers: decode the answers that are not full attention's.
        """
        reuse, tokens, chunks = self._begin(case)
        names = [ArmName.of(policy) for policy, _ in arms]
        if any(name.policy in MEASURED for name in names):
            self._measure(reuse, tokens, chunks)
        constants = {name.constant for name in names} | {""}
        stores = {name: self._behind(reuse, name, tokens, chunks) for name in constants}
        outcomes: list[Outcome] = []
        for order in dict.fromkeys(name.order for name in names):
            own = [arm for arm, name in zip(arms, names, strict=True) if name.order == order]
            outcomes += self._run_order(case, order, own, stores, answers=answers)
        return outcomes

    def _run_order(
        self,
        case: LanguageCase,
        order: str,
        arms: Sequence[Arm],
        stores: Mapping[str, ChunkReuse],
        *,
        answers: bool,
    ) -> Iterator[Outcome]:
        tokens, chunks, num_cached = self.ordered(case, order)
        prefix, begin = f"{order}/" if order else "", chunks[0][0]
        for constant, store in stores.items():
            if constant:  # the first document is exact alone
                store.precompute(tokens[:begin], [tokens[slice(*chunks[0])]])

        def fill(arm: Arm) -> FilledArm:
            name, reused = ArmName.of(arm[0]), chunks[num_cached:]
            if name.is_last_whole:
                reused = reused[:-1]
            own, store = (name.policy, arm[1]), stores[name.constant]
            filled = self._fill(store, tokens, chunks, own, reused=reused)
            cached = chunks[num_cached - 1][1] - begin if num_cached else 0
            return filled._replace(num_computed=filled.num_computed - cached)

        plain = [(policy.removeprefix(prefix), ratio) for policy, ratio in arms]
        for outcome, full, found, cache in measure_arms(fill, plain, answer=self._answer):
            text = None
            if answers or found.same_answer:
                text = self._loaded.tokenizer.decode(full.complete(cache, found)).strip()
            yield Outcome(
                **{**asdict(outcome), "policy": prefix + outcome.policy},
                text=text,
                f1=None if text is None else word_f1(text, case.answers),
                contains=None if text is None else contains(text, case.answers),
            )

    def ordered(self, case: LanguageCase, order: str) -> OrderedPrompt:
        """Return a case's prompt.

        Args:
            order: `shared`: the Booster's in front of an engine that computes all, with its hint,
                behind a request with half of the documents; `bought`: in front of one that reuses
                chunks, behind so many of these requests that their documents are computed exactly;
                `bought_last`: the same with `keep_last` = 1; `last`: this alone, without requests
                before; empty: the case's.
        """
        asked: Any = (case.question, case.documents, case.history)
        if order == "last":
            kept_last = Booster(Settings(ordering=OrderingSettings(keep_last=1)))
            return OrderedPrompt(*self.prompt(*asked, booster=kept_last))
        if order not in ("shared", "bought", "bought_last"):
            return OrderedPrompt(*self.prompt(*asked, earlier=case.earlier))
        half = len(case.documents) // 2
        own = random.Random(case.id).sample(case.documents, half)
        earlier = [*own, *case.strangers[half:]]
        ratio = None if order == "shared" else DEFAULT_RATIO
        ordering = OrderingSettings(keep_last=int(order == "bought_last"))
        booster = Booster(Settings(ordering=ordering))
        for _ in range(1 if ratio is None else ceil(1 / ratio)):
            before, _ = self.prompt(STORING, earlier, booster=booster, ratio=ratio)
        tokens, chunks = self.prompt(*asked, booster=booster, ratio=ratio)
        pairs = enumerate(zip(tokens, before, strict=False))
        common = next(at for at, (one, other) in pairs if one != other)
        return OrderedPrompt(tokens, chunks, sum(stop <= common for _, stop in chunks))

    def first_logits(self, case: LanguageCase, arms: Sequence[Arm]) -> list[torch.Tensor]:
        """Return the logits of the answer's first token, (vocabulary,), in each arm."""
        reuse, tokens, chunks = self._begin(case)
        return [self._fill(reuse, tokens, chunks, arm).logits for arm in arms]

    def _begin(
        self, case: LanguageCase
    ) -> tuple[ChunkReuse, list[int], tuple[tuple[int, int], ...]]:
        """Return a store with the chunks of a case, its prompt, and their positions in it."""
        reuse = self._empty_store()
        self._store(reuse, case)
        earlier = case.earlier
        tokens, chunks = self.prompt(case.question, case.documents, case.history, earlier=earlier)
        if self._stored == "primed":
            self._prime(reuse, tokens, chunks)
        reuse.precompute(tokens[: chunks[0][0]] if chunks else [], [])
        return reuse, tokens, chunks

    def _empty_store(self) -> ChunkReuse:
        store = TieredStore(host_bytes=4 << 30)
        return ChunkReuse(self._adapter, store, identity=self._identity)

    def _answer(self, filled: FilledArm) -> FullAnswer:
        return FullAnswer(
            self._adapter,
            filled.cache,
            filled.logits,
            position=filled.num_tokens,
            max_tokens=self._answer_tokens,
            stop_ids=self._loaded.stop_ids,
        )

    def prompt(
        self,
        question: str,
        documents: Sequence[Document],
        history: Sequence[tuple[str, str]] = (),
        *,
        earlier: Sequence[Document] = (),
        booster: Booster | None = None,
        ratio: float | None = None,
    ) -> tuple[list[int], tuple[tuple[int, int], ...]]:
        """Return a prompt in tokens with the positions of its chunks.

        Args:
            earlier: documents of a request that was sent before, which decide the order, and the
                model is told; none: the retriever's order.
            booster: decides the order also without requests before.
            ratio: what the engine recomputes of reused chunks, if it reuses them.
        """
        booster = booster or (Booster() if earlier else Booster(AS_RETRIEVED))
        if earlier:
            booster.boost(question, earlier)
        context = booster.boost(question, documents, recompute_ratio=ratio)
        messages = [{"role": role, "content": text} for role, text in history]
        written = context.render()
        if self._is_question_first:
            written = f"{question}\n\n{context.render_documents()}Answer:"
        system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": written}
        messages = [system, *messages, user]
        fields: dict[str, Any] = {"messages": messages}
        fields = dict(
            chunk_positions.add_chunks(fields, context, message=len(messages) - 1, reuse="approx")
        )
        built = self._prompts.build(ChatCompletionRequest(**fields))
        assert built.chunks is not None, "asked for"
        return built.token_ids, built.chunks.chunks

    def _store(self, reuse: ChunkReuse, case: LanguageCase) -> None:
        """Store the chunks from earlier requests without its history: one for each document, alone
        or among another case's documents, or one with all of them in another order."""
        requests = [[document] for document in case.documents]
        if self._stored == "captured":
            requests = [[*case.documents]]
        elif self._stored == "elsewhere":
            requests = [[document, *case.strangers[1:]] for document in case.documents]
        draw = random.Random(case.id)
        for documents in requests:
            draw.shuffle(documents)
            tokens, chunks = self.prompt(STORING, documents)
            cache = self._fill(reuse, tokens, chunks, FULL).cache
            asked = ReusingRequest.begin(
                "", EngineChunkRequest(tuple(chunks)), tokens, namespace=(), library=reuse.library
            )
            captured = asked.take_captures(
                reuse.library, pass_start=0, num_computed=len(tokens), exact_stop=None
            )
            reuse.take(cache, tokens, captured)

    def _measure(
        self, reuse: ChunkReuse, tokens: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> None:
        """Measure each chunk behind others of its prompt, the policies' best case."""
        for text, others in _with_neighbours(tokens, chunks):
            reuse.measure(tokens[: chunks[0][0]], text, neighbours=others)

    def _prime(
        self, reuse: ChunkReuse, tokens: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> None:
        """Store each chunk as computed behind others of its prompt (FusionRAG eq. 10, best case),
        but for the first, which is exact alone."""
        for text, others in _with_neighbours(tokens, chunks)[1:]:
            kv = reuse.prime(tokens[: chunks[0][0]], text, neighbours=others)
            key = reuse.library.slot(reuse.library.key(text), is_first=False)
            reuse.library.add(key, kv, is_first=False)

    def _behind(
        self,
        reuse: ChunkReuse,
        name: str,
        tokens: Sequence[int],
        chunks: Sequence[tuple[int, int]],
    ) -> ChunkReuse:
        """Return a store with each chunk computed behind the constant document of this name; the
        store that is given without one."""
        if not name:
            return reuse
        before, [(_, stop), *_] = self.prompt(STORING, [self._constants[name]])
        self._beginnings.precompute(before[:stop], [])
        behind = self._empty_store()
        library = behind.library
        for start, end in chunks:
            key = library.slot(library.key(tokens[start:end]), is_first=False)
            kv = self._beginnings.compute(before[:stop], tokens[start:end])
            library.add(key, kv, is_first=False)
        return behind

    def _fill(
        self,
        reuse: ChunkReuse,
        tokens: list[int],
        chunks: tuple[tuple[int, int], ...],
        arm: Arm,
        *,
        reused: tuple[tuple[int, int], ...] | None = None,
    ) -> FilledArm:
        """Fill a prompt. What stands before the first chunk comes from the store, as from a prefix
        cache.

        Args:
            reused: the chunks that may be; default: all.
        """
        library, start = reuse.library, chunks[0][0] if chunks else 0
        prefix = library.find_beginning(tokens, start)
        prefix_tokens = 0 if prefix is None else start
        request = EngineChunkRequest(chunks if reused is None else reused, *arm)
        if arm == FULL:
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
        steps = fill_steps(
            self._adapter,
            plan,
            prefix=prefix,
            backend=reuse.backend,
        )
        filled = at_once(steps)
        assert filled.logits is not None, "the question is computed"
        computed = filled.counts.recomputed + filled.counts.computed
        return FilledArm(filled.cache, filled.logits, computed, len(tokens))


def _with_neighbours(
    tokens: Sequence[int], chunks: Sequence[tuple[int, int]]
) -> list[tuple[Sequence[int], list[Sequence[int]]]]:
    """Return the tokens of each chunk, with those of the chunks around it."""
    texts = [tokens[start:stop] for start, stop in chunks]
    return [(text, (texts[at + 1 :] + texts[:at])[:NEIGHBOURS]) for at, text in enumerate(texts)]

"""Check chunk reuse inside an offline vLLM, in vLLM's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import json
from typing import Any
from unittest import mock

import torch

from ragboost.chunk_cache.core.fill_budget import StepBudget
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm import scheduler as chunk_scheduler
from tests.engines.offline_vllm import ReuseLLM
from tests.engines.random_model import SMALL, VOCABULARY, Prompts

FIELDS = ("exact", "reused", "recomputed", "computed")


def report(output: Any) -> dict[str, Any]:
    told: dict[str, Any] = output.kv_transfer_params["ragboost"]
    return told


def adds_up(output: Any) -> bool:
    told = report(output)
    return bool(sum(told[name] for name in FIELDS) == len(output.prompt_token_ids))


def text(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def check_reuse(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Chunks of finished requests are reused; no exact request meets approximate blocks."""
    tokens, positions = prompts.prompt([3, 1, 4, 0, 2])
    exact = engine.exact(tokens)
    stale = engine.run(tokens, positions, ratio=0.0, policy="epic")
    part = engine.run(tokens, positions, ratio=0.15)
    everything = engine.logprobs(tokens, positions, ratio=1.0)
    again = engine.run(tokens, positions, ratio=0.15)
    afterwards = engine.logprobs(tokens)
    short, spans = prompts.prompt([4])
    continued = engine.run(short, spans, ratio=0.0, max_tokens=40)
    longer = [*short, *text(continued)[:-1]]
    return {
        "stale": report(stale),
        "part": report(part),
        "again": report(again),
        "adds_up": all(map(adds_up, (stale, part, again, continued))),
        "full_error": float((everything - exact).abs().max()),
        "poison": float((afterwards - exact).abs().max()),
        "poison_after_output": float((engine.logprobs(longer) - engine.exact(longer)).abs().max()),
    }


def check_bought(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Bought chunks are an ordinary prefix for everybody, also in the step that computes them."""
    first, positions = prompts.prompt([3, 1, 4, 0, 2])
    second, others = prompts.prompt([3, 1, 2, 4, 0])
    engine.llm.reset_prefix_cache()
    bought = engine.run(first, positions, ratio=0.15, exact_chunks=2)
    found = engine.run(second, others, ratio=0.15, exact_chunks=2)
    plain = engine.run(prompts.prompt([3, 1])[0])
    poison = float((engine.logprobs(second) - engine.exact(second)).abs().max())
    engine.llm.reset_prefix_cache()
    whole = engine.run(first, positions, ratio=0.15, exact_chunks=5)
    engine.llm.reset_prefix_cache()
    core, ended = engine.llm.llm_engine, {}
    full: dict[str, Any] = {"ratio": 1.0, "exact_chunks": 2, "logprobs": VOCABULARY}
    asked = {
        "buying": (first, engine.sampling(positions, **full)),
        "also buying": (second, engine.sampling(others, **full)),
        "exact": (second, engine.sampling(logprobs=VOCABULARY)),
    }
    for name, (prompt, sampling) in asked.items():
        core.add_request(name, {"prompt_token_ids": prompt}, sampling)
    while core.has_unfinished_requests():
        ended.update({out.request_id.split("-")[0]: out for out in core.step()})
    engine.llm.reset_prefix_cache()
    return {
        "bought": report(bought),
        "found": report(found),
        "plain_cached": plain.num_cached_tokens,
        "whole": report(whole),
        "adds_up": all(map(adds_up, (bought, found, whole))),
        "poison": poison,
        "shared_error": max(error(engine, output) for output in ended.values()),
        "num_ended": len(ended),
    }


def check_batch(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Approximate and exact requests of one step, and choices of one request, do not mix."""
    tokens, positions = prompts.prompt([2, 0, 1, 4, 3])
    other, _ = prompts.prompt([1, 0])
    alone = [text(engine.run(prompt, max_tokens=8)) for prompt in (tokens, other)]
    engine.llm.reset_prefix_cache()
    reused = text(engine.run(tokens, positions, ratio=0.15, max_tokens=8))
    engine.llm.reset_prefix_cache()
    sampling = [
        engine.sampling(positions, ratio=0.15, max_tokens=8),
        engine.sampling(max_tokens=8),
        engine.sampling(max_tokens=8),
        engine.sampling(positions, ratio=1.0, max_tokens=8),
    ]
    batch = [{"prompt_token_ids": prompt} for prompt in (tokens, tokens, other, tokens)]
    outputs = engine.llm.generate(batch, sampling, use_tqdm=False)
    choices = engine.sampling(positions, ratio=0.15, max_tokens=8)
    choices.n, choices.temperature, choices.top_k = 3, 1.0, 1  # the most likely token
    many = engine.llm.generate([batch[0]], choices, use_tqdm=False)[0]
    return {
        "is_batch_right": [text(output) for output in outputs]
        == [reused, alone[0], alone[1], alone[0]],
        "are_choices_right": [list(one.token_ids) for one in many.outputs] == [reused] * 3,
    }


def check_bad_input(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Whatever a request says, it is answered, exactly if it makes no sense."""
    tokens, positions = prompts.prompt([4, 3, 2])
    exact = engine.exact(tokens)
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "overlapping": ([[40, 160], [150, 280]], {}),
        "outside": ([[40, 16_000]], {}),
        "unknown policy": (positions, {"policy": "best"}),
        "shifted": ([[start + 1, stop] for start, stop in positions], {}),
        "off": (positions, {"reuse": False}),
        "another tenant": (positions, {"tenant": "other"}),
        "no number": (positions, {"exact_chunks": "two"}),
    }
    told = {}
    for name, (spans, options) in cases.items():
        engine.llm.reset_prefix_cache()
        reason = report(engine.run(tokens, spans, **options)).get("reason")
        error = float((engine.logprobs(tokens, spans, **options) - exact).abs().max())
        told[name] = [reason, error < 1e-3]
    asked = engine.sampling(positions, ratio=0.0)
    asked.prompt_logprobs = 1
    output = engine.llm.generate([{"prompt_token_ids": tokens}], asked, use_tqdm=False)[0]
    told["prompt logprobs"] = [report(output).get("reason"), len(output.prompt_logprobs) > 0]
    return told


def check_measuring(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Policies that need measurements reuse measured chunks only, as `ChunkReuse` does."""
    tokens, positions = prompts.prompt([3, 1, 4, 0, 2])
    engine.llm.reset_prefix_cache()
    before = report(engine.run(tokens, positions, policy="cachecraft", ratio=0.15))
    for number in range(len(prompts.chunks)):
        engine.run(*prompts.prompt([number]), reuse=False)  # alone, instead of what is stored
    for number, chunk in enumerate(prompts.chunks):
        others = [(number + step) % 5 for step in (1, 2)]
        measured = report(engine.run(*prompts.prompt([*others, number]), measure=True))
        assert measured["recomputed"] == len(chunk), measured
    engine.llm.reset_prefix_cache()
    after = report(engine.run(tokens, positions, policy="cachecraft", ratio=0.15))
    return {"before": before, "after": after}  # `check_prepared` compares what is computed


def check_prepared(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """KV computed behind neighbours (FusionRAG eq. 10) is kept, found, and that of `prime`."""
    library = scheduler_of(engine)._library
    reuse = ChunkReuse(ModelAdapter(engine.reference), TieredStore())
    primed = []
    for number, chunk in enumerate(prompts.chunks):
        others = [(number + step) % 5 for step in (1, 2)]
        engine.run(*prompts.prompt([*others, number]), measure=True)
        neighbours = [prompts.chunks[other] for other in others]
        primed.append(reuse.prime(prompts.system, chunk, neighbours=neighbours))
    order = (1, 2, 0, 4, 3)  # the first chunk is exact here, and is found as it was alone
    chunks = [prompts.chunks[number] for number in order]
    stored = [reuse.plain(prompts.system, chunks[0]), *(primed[number] for number in order[1:])]
    tokens, positions = prompts.prompt(order)
    worst = 0.0
    for policy in ("anchored", "cachecraft", "epic"):
        engine.llm.reset_prefix_cache()
        got = engine.logprobs(tokens, positions, policy=policy, ratio=0.15)
        wanted = reuse.prefill(
            prompts.system, chunks, prompts.question, policy=policy, ratio=0.15, stored=stored
        )
        logprobs = torch.log_softmax(wanted.logits.float(), -1)
        worst = max(worst, float((got - logprobs).abs().max()))
    found = [library.find(library.key(chunk), chunk) for chunk in prompts.chunks]
    names = [chunk_name(prompts.chunks[other]) for other in (1, 2)]
    return {
        "error": worst,
        "are_behind": [kv.base for kv in found] == [kv.base for kv in primed],
        "overlap": found[0].influence.overlap(names),
    }


def check_ends(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """A prompt that ends in a chunk, and requests that are aborted."""
    tokens, positions = prompts.prompt([3, 1, 0], question=())
    ending = engine.logprobs(tokens, positions, ratio=1.0)
    core = engine.llm.llm_engine
    core.add_request("x", {"prompt_token_ids": tokens}, engine.sampling(positions, max_tokens=50))
    core.step()
    core.abort_request(["x"])
    while core.has_unfinished_requests():
        core.step()
    scheduler = scheduler_of(engine)
    return {
        "ending_error": float((ending - engine.exact(tokens)).abs().max()),
        "num_left": len(scheduler._tracked) + len(scheduler._worker.outcomes),
    }


def scheduler_of(engine: ReuseLLM) -> Any:
    return engine.llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler


def check_failure(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """A prompt that cannot be filled for want of memory is computed by vLLM. Nothing is taken out
    of the step that it failed in: that was computed over blocks without KV."""
    tokens, positions = prompts.prompt([1, 4, 2], question=())
    last, question = prompts.tokens(100), prompts.tokens(23)
    positions = [*positions, [len(tokens), len(tokens) + len(last)]]
    tokens = [*tokens, *last, *question]
    scheduler = scheduler_of(engine)
    ran = failing(scheduler._worker.model)
    told = report(engine.run(tokens, positions, ratio=0.15))
    engine.llm.reset_prefix_cache()
    got = engine.logprobs(tokens, positions, ratio=0.15)
    del scheduler._worker.model.forward
    return {
        "num_failed": len(ran),
        "failed_error": float((got - engine.exact(tokens)).abs().max()),
        "failed_reason": told["reason"],
        "is_captured": scheduler._library.key(last) in scheduler._library,
    }


def check_pacing(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """A prompt that needs more than a step may compute is filled over several, in which other
    requests decode; it may be aborted and may fail there."""
    tokens, positions = prompts.prompt([1, 0, 4, 2, 3])
    scheduler, core = scheduler_of(engine), engine.llm.llm_engine
    engine.llm.reset_prefix_cache()
    at_once = engine.logprobs(tokens, positions, ratio=0.5)
    budget, scheduler._budget = scheduler._budget, StepBudget(64)
    engine.llm.reset_prefix_cache()
    in_steps = engine.logprobs(tokens, positions, ratio=0.5)
    poison = float((engine.logprobs(tokens) - engine.exact(tokens)).abs().max())
    engine.llm.reset_prefix_cache()

    def add(number: str, *, max_tokens: int = 1) -> None:
        sampling = engine.sampling(positions, ratio=0.5, max_tokens=max_tokens)
        core.add_request(number, {"prompt_token_ids": tokens}, sampling)

    running = {"prompt_token_ids": prompts.tokens(20)}
    core.add_request("running", running, engine.sampling(max_tokens=30))
    core.step()
    add("long")
    num_before = 0  # tokens of the running request before the long one's first
    while core.has_unfinished_requests():
        outputs = core.step()
        if any(output.request_id.startswith("long") for output in outputs):
            break
        num_before += 1
    while core.has_unfinished_requests():
        core.step()
    engine.llm.reset_prefix_cache()
    add("aborted", max_tokens=5)
    core.step()
    num_waiting = len(scheduler._worker._fills)
    core.abort_request(["aborted"])
    core.step()
    free = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.usage
    ran = failing(scheduler._worker.model)
    failed = engine.logprobs(tokens, positions, ratio=0.5)
    del scheduler._worker.model.forward
    scheduler._budget = budget
    return {
        "paced_difference": float((in_steps - at_once).abs().max()),
        "paced_poison": poison,
        "num_tokens_between": num_before,
        "num_waiting": num_waiting,
        "num_left": len(scheduler._worker._fills) + len(scheduler._plans) + len(scheduler._tracked),
        "usage_left": free,
        "num_failed": len(ran),
        "failed_error": float((failed - engine.exact(tokens)).abs().max()),
    }


def failing(model: Any) -> list[int]:
    """Let the model fail; return a list with an entry for each time."""
    ran: list[int] = []

    def fail(*args: Any, **options: Any) -> None:
        ran.append(1)
        raise torch.OutOfMemoryError

    model.forward = fail
    return ran


def check_preemption(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """More requests than the cache holds give the same text as one at a time."""
    orders = [[3, 1, 4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 1, 3, 0]]
    made = [prompts.prompt(order) for order in orders]
    singly = []
    for tokens, positions in made:
        engine.llm.reset_prefix_cache()
        singly.append(text(engine.run(tokens, positions, ratio=0.15, max_tokens=200)))
    engine.llm.reset_prefix_cache()
    together = engine.llm.generate(
        [{"prompt_token_ids": tokens} for tokens, _ in made],
        [engine.sampling(positions, ratio=0.15, max_tokens=200) for _, positions in made],
        use_tqdm=False,
    )
    poison = [float((engine.logprobs(t) - engine.exact(t)).abs().max()) for t, _ in made]
    return {
        "is_preempted_right": [text(output) for output in together] == singly,
        "preempted_poison": max(poison),
    }


def check_shared_step(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """Requests that are scheduled together, in an engine that decodes: vLLM gives the second one
    the blocks that the first one is about to compute."""
    core, worst, plain = engine.llm.llm_engine, 0.0, 0.0
    core.add_request(
        "busy", {"prompt_token_ids": prompts.tokens(20)}, engine.sampling(max_tokens=60)
    )
    core.step()
    for number in range(5):
        head, chunk = prompts.tokens(100), prompts.chunks[number]
        between = prompts.tokens(30)
        tokens = [*head, *between, *chunk, *prompts.question]
        start = len(head) + len(between)
        asked = {
            "plain": (head, engine.sampling(logprobs=VOCABULARY)),
            "reusing": (
                tokens,
                engine.sampling([[start, start + len(chunk)]], ratio=1.0, logprobs=VOCABULARY),
            ),
        }
        ended = dict[str, Any]()
        for name, (prompt, sampling) in asked.items():
            core.add_request(name, {"prompt_token_ids": prompt}, sampling)
        while len(ended) < len(asked):
            ended.update({out.request_id: out for out in core.step() if out.request_id in asked})
        assert report(ended["reusing"])["recomputed"] == len(chunk), report(ended["reusing"])
        worst = max(worst, error(engine, ended["reusing"]))
        core.add_request(
            "afterwards", {"prompt_token_ids": tokens}, engine.sampling(logprobs=VOCABULARY)
        )
        while "afterwards" not in ended:
            ended.update({out.request_id: out for out in core.step()})
        plain = max(plain, error(engine, ended["plain"]), error(engine, ended["afterwards"]))
    while core.has_unfinished_requests():
        core.step()
    return {"shared_error": worst, "plain_error": plain}


def error(engine: ReuseLLM, output: Any) -> float:
    """Return the largest difference of a first token's log-probabilities to transformers'."""
    wanted = engine.exact(list(output.prompt_token_ids))
    entries = output.outputs[0].logprobs[0]
    assert len(entries) == len(wanted)
    return float(max(abs(e.logprob - float(wanted[token])) for token, e in entries.items()))


def check_new_weights(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """After new weights nothing is reused that the old ones computed; with the old ones, it is."""
    tokens, positions = prompts.prompt([4, 0, 2])

    def renew(worker: Any, *, factor: float) -> None:
        runner = worker.model_runner
        parameters = list(runner.get_model().parameters())
        runner.reload_weights = lambda: [each.data.mul_(factor) for each in parameters]
        worker.reload_weights()

    told = []
    for factor in (1.0, 2.0, 0.5):
        engine.llm.collective_rpc(renew, kwargs={"factor": factor})
        engine.llm.reset_prefix_cache()
        told.append(report(engine.run(tokens, positions, ratio=0.0)))
    return {"reused": [each["reused"] > 0 for each in told], "reason": told[1]["reason"]}


def check_reset(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """After weights were changed in place, behind everybody's back, resetting the caches leaves
    nothing that the old ones computed; also if only a few rows of one tensor changed."""
    tokens, positions = prompts.prompt([4, 0, 2])

    def scale(worker: Any, *, factor: float) -> None:
        largest = max(worker.model_runner.get_model().parameters(), key=torch.numel)
        largest.data[40:71].mul_(factor)

    told = {}
    for when, factor in (("before", 1.0), ("changed", 2.0), ("restored", 0.5)):
        engine.llm.collective_rpc(scale, kwargs={"factor": factor})
        is_reset = engine.llm.reset_prefix_cache(reset_connector=factor != 1.0)
        engine.run(prompts.tokens(30))  # several ranks look at their weights in this step
        first = report(engine.run(tokens, positions, ratio=0.0))
        engine.llm.reset_prefix_cache()
        second = report(engine.run(tokens, positions, ratio=0.0))
        told[when] = [is_reset, first["reused"] > 0, second["reused"] > 0]
    return told


def check_broken_hook(engine: ReuseLLM, prompts: Prompts) -> dict[str, Any]:
    """An internal that moved in a patch release fails in the scheduler's thread, for a request
    whose blocks vLLM takes for filled."""
    tokens, positions = prompts.prompt([4, 0, 2])
    connector = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector

    def moved(*args: Any) -> None:
        raise AttributeError("get_block_ids")

    engine.run(tokens, positions)  # stored now
    engine.llm.reset_prefix_cache()
    with mock.patch.object(chunk_scheduler, "block_ids", moved):
        broken = engine.logprobs(tokens, positions, ratio=0.0)
    engine.llm.reset_prefix_cache()
    afterwards = engine.run(tokens, positions, ratio=0.0)
    exact = engine.exact(tokens)
    return {
        "off_reason": connector.off_reason,
        "reason": report(afterwards)["reason"],
        "errors": [
            float((got - exact).abs().max())
            for got in (broken, engine.logprobs(tokens), engine.logprobs(tokens, positions))
        ],
    }


CHECKS = (
    check_reuse,
    check_batch,
    check_bad_input,
    check_measuring,
    check_prepared,
    check_ends,
    check_failure,
    check_pacing,
    check_preemption,
    check_shared_step,
    check_new_weights,
    check_reset,
    check_bought,
    check_broken_hook,  # the last one: reuse is off afterwards
)


def main() -> None:
    # 75 blocks of 32 tokens: fewer than four prompts of 663 tokens and their completions need.
    engine = ReuseLLM(SMALL, blocks=75, max_model_len=1024, max_num_batched_tokens=1024)
    prompts = Prompts(system=40, chunks=5, size=120, question=23)
    first = report(engine.run(*prompts.prompt([0, 1, 2, 3, 4])))
    told: dict[str, Any] = {"first": first}
    for check in CHECKS:
        told[check.__name__] = check(engine, prompts)
    print(json.dumps(told))


if __name__ == "__main__":
    main()

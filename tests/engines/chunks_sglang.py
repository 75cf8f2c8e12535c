"""Check chunk reuse inside an offline SGLang, in SGLang's environment.

Prints one JSON object, which the test that starts this file checks.
"""

import asyncio
import json
from typing import Any

from tests.engines.offline_sglang import ReuseSGLang
from tests.engines.random_model import SMALL, Prompts

FIELDS = ("exact", "reused", "recomputed", "computed")
PAGE = 16


def adds_up(output: dict[str, Any]) -> bool:
    return bool(
        sum(output["report"][name] for name in FIELDS) == output["meta_info"]["prompt_tokens"]
    )


def text(output: dict[str, Any]) -> list[int]:
    return list(output["output_ids"])


def check_reuse(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """Chunks of finished requests are reused; no exact request meets approximate KV."""
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
        "stale": stale["report"],
        "part": part["report"],
        "is_again_equal": text(again) == text(part) and again["report"] == part["report"],
        "adds_up": all(map(adds_up, (stale, part, again, continued))),
        "full_error": float((everything - exact).abs().max()),
        "poison": float((afterwards - exact).abs().max()),
        "poison_after_output": float((engine.logprobs(longer) - engine.exact(longer)).abs().max()),
    }


def check_bought(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """Bought chunks are an ordinary prefix for everybody."""
    first, positions = prompts.prompt([3, 1, 4, 0, 2])
    second, others = prompts.prompt([3, 1, 2, 4, 0])
    engine.flush()
    bought = engine.run(first, positions, ratio=0.15, exact_chunks=2)
    found = engine.run(second, others, ratio=0.15, exact_chunks=2)
    plain = engine.run(prompts.prompt([3, 1])[0])
    poison = float((engine.logprobs(second) - engine.exact(second)).abs().max())
    engine.flush()
    alone = text(engine.run(second, max_tokens=8))
    engine.flush()
    sampling = [
        engine.sampling(positions, ratio=1.0, max_tokens=8, exact_chunks=2),
        engine.sampling(others, ratio=1.0, max_tokens=8, exact_chunks=2),
        engine.sampling(max_tokens=8),
    ]
    outputs = engine.engine.generate(input_ids=[first, second, second], sampling_params=sampling)
    engine.flush()
    return {
        "bought": bought["report"],
        "found": found["report"],
        "plain_cached": plain["meta_info"]["cached_tokens"],
        "adds_up": all(map(adds_up, (bought, found))),
        "poison": poison,
        "are_shared_right": [text(output) for output in outputs[1:]] == [alone] * 2,
    }


def check_batch(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """Approximate and exact requests of one step do not mix."""
    tokens, positions = prompts.prompt([2, 0, 1, 4, 3])
    other, _ = prompts.prompt([1, 0])
    alone = [text(engine.run(prompt, max_tokens=8)) for prompt in (tokens, other)]
    engine.flush()
    reused = text(engine.run(tokens, positions, ratio=0.15, max_tokens=8))
    engine.flush()
    sampling = [
        engine.sampling(positions, ratio=0.15, max_tokens=8),
        engine.sampling(max_tokens=8),
        engine.sampling(max_tokens=8),
        engine.sampling(positions, ratio=1.0, max_tokens=8),
    ]
    outputs = engine.engine.generate(
        input_ids=[tokens, tokens, other, tokens], sampling_params=sampling
    )
    return {
        "is_batch_right": [text(output) for output in outputs]
        == [reused, alone[0], alone[1], alone[0]]
    }


def check_bad_input(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
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
    }
    told: dict[str, Any] = {}
    for name, (spans, options) in cases.items():
        engine.flush()
        reason = engine.run(tokens, spans, **options)["report"].get("reason")
        error = float((engine.logprobs(tokens, spans, **options) - exact).abs().max())
        told[name] = [reason, error < 1e-3]
    sampling = engine.sampling(max_tokens=2)
    sampling["custom_params"] = {"ragboost": "no JSON"}
    output = engine.engine.generate(input_ids=tokens, sampling_params=sampling)
    told["no JSON"] = len(output["output_ids"])
    return told


def check_ends(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """A prompt that ends in a chunk, and log-probabilities of the prompt."""
    tokens, positions = prompts.prompt([3, 1, 0], question=())
    ending = engine.logprobs(tokens, positions, ratio=1.0)
    engine.flush()
    output = engine.engine.generate(
        input_ids=tokens,
        sampling_params=engine.sampling(positions, ratio=0.0),
        return_logprob=True,
        logprob_start_len=0,
    )
    return {
        "ending_error": float((ending - engine.exact(tokens)).abs().max()),
        "num_prompt_logprobs": len(output["meta_info"]["input_token_logprobs"]),
        "num_cached": output["meta_info"]["cached_tokens"],
    }


def check_pressure(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """More requests than the pool holds give the same text as one at a time."""
    orders = [[3, 1, 4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 1, 3, 0]]
    made = [prompts.prompt(order) for order in orders]
    singly = []
    for tokens, positions in made:
        engine.flush()
        singly.append(text(engine.run(tokens, positions, ratio=1.0, max_tokens=200)))
    engine.flush()
    together = engine.engine.generate(
        input_ids=[tokens for tokens, _ in made],
        sampling_params=[
            engine.sampling(positions, ratio=1.0, max_tokens=200) for _, positions in made
        ],
    )
    poison = [float((engine.logprobs(t) - engine.exact(t)).abs().max()) for t, _ in made]
    return {
        "is_text_right": [text(output) for output in together] == singly,
        "poison": max(poison),
    }


def check_abort(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """Requests that leave give their slots back: SGLang ends itself if any is missing."""
    tokens, positions = prompts.prompt([1, 2, 3, 4, 0])

    async def leave() -> None:
        stream = await engine.engine.async_generate(
            input_ids=tokens,
            sampling_params=engine.sampling(positions, ratio=0.0, max_tokens=300),
            rid="leaving",
            stream=True,
        )
        async for _ in stream:
            engine.engine.tokenizer_manager.abort_request(rid="leaving")

    engine.engine.loop.run_until_complete(asyncio.wait_for(leave(), 300))
    engine.flush()
    return {"error": float((engine.logprobs(tokens) - engine.exact(tokens)).abs().max())}


def check_pacing(engine: ReuseSGLang, prompts: Prompts) -> dict[str, Any]:
    """A request decodes while another one is filled, and nothing is left of one that leaves
    meanwhile."""
    tokens, positions = prompts.prompt([3, 0, 4, 2, 1])

    async def beside(number: str, *, leaves: bool) -> int:
        """Return the tokens of a running request from the arrival of another one to its end."""
        sampling = engine.sampling(positions, ratio=0.5, max_tokens=1)
        running = await engine.engine.async_generate(
            input_ids=prompts.tokens(20),
            sampling_params=engine.sampling(max_tokens=100),
            stream=True,
        )
        other: asyncio.Future[None] | None = None
        begin = end = 0

        async def come() -> None:
            stream = await engine.engine.async_generate(
                input_ids=tokens, sampling_params=sampling, rid=number, stream=True
            )
            async for _ in stream:
                pass

        async for output in running:
            count = output["meta_info"]["completion_tokens"]
            if other is None and count >= 2:
                other, begin = asyncio.ensure_future(come()), count
            elif other is not None and leaves and count >= begin + 3:
                engine.engine.tokenizer_manager.abort_request(rid=number)
            if other is not None and other.done() and not end:
                end = count
        assert other is not None
        await asyncio.gather(other, return_exceptions=True)
        return end - begin

    run = engine.engine.loop.run_until_complete
    engine.flush()
    between = run(asyncio.wait_for(beside("long", leaves=False), 300))
    engine.flush()
    run(asyncio.wait_for(beside("leaving", leaves=True), 300))
    engine.flush()  # SGLang ends itself if a slot is missing
    whole = engine.logprobs(tokens, positions, ratio=1.0)
    return {
        "num_tokens_between": between,
        "full_error": float((whole - engine.exact(tokens)).abs().max()),
        "poison": float((engine.logprobs(tokens) - engine.exact(tokens)).abs().max()),
    }


CHECKS = (
    check_reuse,
    check_bought,
    check_batch,
    check_bad_input,
    check_ends,
    check_pressure,
    check_abort,
    check_pacing,
)


def main() -> None:
    told: dict[str, Any] = {}
    # Fewer tokens than four prompts of 663 tokens and their completions of 200 need, and steps in
    # which no prompt is filled at once.
    settings = {"step_tokens": 64}
    with ReuseSGLang(SMALL, page_size=PAGE, tokens=3200, settings=settings) as engine:
        prompts = Prompts(system=40, chunks=5, size=120, question=23)
        told["first"] = engine.run(*prompts.prompt([0, 1, 2, 3, 4]))["report"]
        for check in CHECKS:
            told[check.__name__] = check(engine, prompts)
    print(json.dumps(told))


if __name__ == "__main__":
    main()

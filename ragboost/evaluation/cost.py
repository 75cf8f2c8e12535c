"""Estimate what asking will cost, before the first request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostEstimate:
    num_prompts: int  # distinct prompts of all arms
    num_known: int  # those answered by earlier runs
    prompt_tokens: int  # estimated, of the others
    max_completion_tokens: int  # at most, of the others
    num_verdicts: int = 0  # requests to the judge, at most
    judge_tokens: int = 0  # estimated tokens of these
    price_in: float | None = None  # per million prompt tokens; None: not given
    price_out: float | None = None  # per million completion tokens

    @property
    def num_missing(self) -> int:
        return self.num_prompts - self.num_known

    @property
    def money(self) -> float | None:
        """The most that the answers cost, without the judge."""
        if self.price_in is None and self.price_out is None:
            return None
        tokens_in = self.prompt_tokens * (self.price_in or 0.0)
        return (tokens_in + self.max_completion_tokens * (self.price_out or 0.0)) / 1e6

    def sentence(self) -> str:
        earlier = f", {self.num_known:,} answered before" if self.num_known else ""
        text = (
            f"{self.num_missing:,} requests of {self.num_prompts:,} distinct prompts{earlier}: "
            f"about {self.prompt_tokens:,} prompt tokens, at most {self.max_completion_tokens:,} "
            "new ones"
        )
        if self.money is not None:
            text += f", at most {self.money:,.2f} at your prices"
        if self.num_verdicts:
            text += (
                f"; up to {self.num_verdicts:,} requests to the judge, about "
                f"{self.judge_tokens:,} tokens"
            )
        return text

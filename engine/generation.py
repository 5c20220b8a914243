"""Writing text, one token at a time: the choice of the next token, and the loop around the model.

Showing it is the caller's business.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from data.prepare import PreparedData
from engine.runtime import derived_seed
from errors import CheckpointError, UserError
from model import GPT, KVCache


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen: temperature first, then top_k, then top_p, then one draw from what is left.

    temperature: above 1 flatter, below 1 sharper, 0 always the likeliest token. top_k: only the k likeliest
    (None or 0: all). top_p: only the likeliest tokens that together reach this probability (1: all).
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        # Written so that nan fails too.
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature must be 0 (greedy) or a larger number, got {self.temperature}")
        if self.top_k is not None and self.top_k < 0:
            raise UserError(f"--top-k must be a whole number from 1 on, or 0 for all tokens, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p must be above 0 and at most 1 (all tokens), got {self.top_p}")


def sample_generator(seed: int, index: int = 0) -> torch.Generator:
    """The generator of the sample with this number: samples of one seed differ, and one seed repeats them all."""
    return torch.Generator().manual_seed(derived_seed(seed, index))


def choose_next(logits: Tensor, settings: SamplingSettings, generator: torch.Generator) -> int:
    """The id of the next token, from its logits (V); a token at -inf is never chosen.

    Raises `CheckpointError` for logits that are not numbers.
    """
    # On the CPU: the generator lives there, and some devices have drawn tokens of probability zero.
    logits = logits.float().cpu()
    best = int(logits.argmax())
    if not torch.isfinite(logits[best]):
        raise CheckpointError("the model's output is not a number: its weights are damaged; use another --checkpoint")
    if settings.temperature == 0:
        return best
    k = settings.top_k or len(logits)
    values, ids = logits.topk(min(k, len(logits)))  # sorted, likeliest first
    # The largest becomes 0 before the division, so that a tiny temperature cannot overflow.
    probabilities = torch.softmax((values - values[0]).double() / settings.temperature, dim=0)
    if settings.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities.where(before < settings.top_p, 0.0)
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


@torch.inference_mode()
def generate(
    model: GPT,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    settings: SamplingSettings,
    generator: torch.Generator,
    end_id: int,
    stops_at_end: bool,
    never: Sequence[int] = (),
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[int]:
    """Yield up to `max_new_tokens` ids that continue `ids` (at least one), of which the last window is read.

    Where `stops_at_end`, drawing `end_id` ends the text (it is not yielded); otherwise `end_id` is never drawn.
    `never` are ids without a text, which are not drawn either.
    `autocast` is the precision that the model computes in: `Runtime.autocast`, or without it that of the weights.
    """
    context_length = model.config.context_length
    history = list(ids[-context_length:])
    device = model.token_embedding.weight.device
    excluded = torch.tensor([*never, *([] if stops_at_end else [end_id])], dtype=torch.int64, device=device)
    cache = KVCache(model, 1, len(history) + max_new_tokens)
    new = history
    for _ in range(max_new_tokens):
        if cache.length + len(new) > context_length:  # the window is full: keep its younger half and go on
            cache.clear()
            new = history[-max(1, context_length // 2) :]
        with autocast():
            logits = model(torch.tensor([new], device=device), cache)[0, -1]
        logits[excluded] = -torch.inf
        token = choose_next(logits, settings, generator)
        if token == end_id:
            return
        yield token
        new = [token]
        history = [*history[1 - context_length :], token] if context_length > 1 else new


def continuation(
    model: GPT, prepared: PreparedData, prompt: str, *, seed: int, num_tokens: int, may_end: bool = True
) -> str:
    """How a model in training goes on after `prompt` on the text that it is trained on; the same for the same weights.

    Where it may not end, it has all of `num_tokens`. Leaves the model in the mode that it was in.
    """
    tokenizer, was_training = prepared.tokenizer, model.training
    model.eval()
    ids = list(
        generate(
            model,
            tokenizer.encode(prompt).tolist() or [prepared.start_id],
            max_new_tokens=num_tokens,
            settings=SamplingSettings(),
            generator=sample_generator(seed),
            end_id=tokenizer.end_id,
            stops_at_end=may_end and prepared.num_documents > 1,
            never=tokenizer.never_generated,
        )
    )
    model.train(was_training)
    return tokenizer.decode(ids)

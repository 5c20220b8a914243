"""Writing tokens: the loop around the model, for one text or for many side by side.

How a token is chosen is the business of `engine.choice`, how the model is computed that of `engine.decoder`, and what
becomes of the tokens that of `engine.writing`.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from data.prepare import PreparedData
from data.tokenizer import Tokenizer
from engine.choice import SamplingSettings, choose, sample_generator
from engine.decoder import Decoder
from errors import UserError
from model import GPT

MAX_ROWS = {
    "cpu": 32,
    "cuda": 256,
    "mps": 64,
}  # written side by side; the measurement behind the first: bench/sample.py
CACHE_BYTES = 2**30  # that the keys and values of all rows may take


@dataclass(eq=False)
class Draft:
    """A text in the making, as ids. Who reads it along may set `ended`, and it is written no further."""

    ids: Sequence[int]  # what it begins with, at least one
    generator: np.random.Generator  # its own, so that it does not depend on what is written beside it
    new_ids: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)  # of the new ones, the model's own, in nats
    ended: bool = False
    reached_end: bool = False  # because the model ended it

    def last(self, n: int) -> list[int]:
        """Its last ids, at most n (from 1 on)."""
        new = self.new_ids[-n:]
        return [*self.ids[max(0, len(self.ids) + len(new) - n) :], *new] if len(new) < n else new


AnyDraft = TypeVar("AnyDraft", bound=Draft)


def generate(
    model: GPT,
    tokenizer: Tokenizer,
    drafts: Sequence[AnyDraft],
    *,
    max_new_tokens: int,
    settings: SamplingSettings,
    stops_at_end: bool,
    dtype: torch.dtype = torch.float32,
    int8: bool = False,
) -> Iterator[AnyDraft]:
    """Write `max_new_tokens` to each draft, and yield it after each of them and at its end.

    Where `stops_at_end`, drawing the tokenizer's `end_id` ends a draft (it is not added); otherwise it is never drawn,
    as are ids without a text. `dtype` and `int8` as in `Decoder`. The model reads the last window of a draft; where
    that is full, it goes on from its younger half.
    """
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be 1 or more, got {max_new_tokens}")
    context_length = model.config.context_length
    never = [*tokenizer.never_generated, *range(tokenizer.vocab_size, model.vocab_size)]
    if not stops_at_end:
        never.append(tokenizer.end_id)
    capacity = min(context_length, max((len(draft.ids) for draft in drafts), default=0) + max_new_tokens)
    waiting = deque(drafts)
    writing = [waiting.popleft() for _ in range(min(len(waiting), rows_at_once(model, capacity)))]
    decoder = Decoder(model, len(writing), capacity, dtype=dtype, int8=int8)
    # A decoder has read all of a draft but its last id, which the next step begins with.
    decoder.prefill({row: draft.last(context_length)[:-1] for row, draft in enumerate(writing)})
    while writing:
        logits = decoder.decode(torch.tensor([draft.last(1)[0] for draft in writing], device=decoder.device))
        ids, log_probabilities = choose(
            logits.cpu().numpy().astype(np.float64),
            settings,
            [draft.generator.random() for draft in writing],
            never=never,
            windows=[draft.last(context_length) for draft in writing] if settings.repetition_penalty != 1 else (),
        )
        for draft, token, log_probability in zip(writing, ids.tolist(), log_probabilities.tolist(), strict=True):
            if draft.ended:  # by the reader, in the turn of another
                continue
            if token == tokenizer.end_id:
                draft.ended = draft.reached_end = True
            else:
                draft.new_ids.append(token)
                draft.log_probabilities.append(log_probability)
                draft.ended = len(draft.new_ids) == max_new_tokens
            yield draft
        writing = next_writing(decoder, writing, waiting)


def rows_at_once(model: GPT, capacity: int) -> int:
    """How many texts are written side by side."""
    config, device = model.config, model.token_embedding.weight.device
    bytes_per_row = 2 * 4 * config.num_layers * config.d_model * capacity
    return max(1, min(MAX_ROWS[device.type], CACHE_BYTES // bytes_per_row))


def next_writing(decoder: Decoder, writing: list[AnyDraft], waiting: deque[AnyDraft]) -> list[AnyDraft]:
    """The drafts of the next step: one that has ended makes room for one that waits; a full window begins anew."""
    context_length = decoder.model.config.context_length
    to_read = {}
    for row, draft in enumerate(writing):
        while waiting and waiting[0].ended:
            waiting.popleft()
        if draft.ended and waiting:
            writing[row] = waiting.popleft()
            to_read[row] = writing[row].last(context_length)[:-1]
        elif not draft.ended and decoder.lengths[row] == context_length:
            to_read[row] = draft.last(max(1, context_length // 2))[:-1]
    if to_read:
        decoder.prefill(to_read)
    left = [row for row, draft in enumerate(writing) if not draft.ended]
    if len(left) < len(writing):
        decoder.keep(left)
    return [writing[row] for row in left]


def continuation(
    model: GPT, prepared: PreparedData, prompt: str, *, seed: int, num_tokens: int, may_end: bool = True
) -> str:
    """How a model in training goes on after `prompt` on the text that it is trained on; the same for the same weights.

    Where it may not end, it has all of `num_tokens`. Leaves the model in the mode that it was in.
    """
    tokenizer, was_training = prepared.tokenizer, model.training
    draft = Draft(tokenizer.encode(prompt).tolist() or [prepared.start_id], sample_generator(seed))
    model.eval()
    try:
        for _ in generate(
            model,
            tokenizer,
            [draft],
            max_new_tokens=num_tokens,
            settings=SamplingSettings(),
            stops_at_end=may_end and prepared.num_documents > 1,
        ):
            pass
    finally:
        model.train(was_training)
    characters = tokenizer.decoder()  # which leaves out a last one that is not whole
    return "".join(characters.push(token) for token in draft.new_ids)

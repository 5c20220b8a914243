"""What a model does with a text: how each token surprises it, what it expects next, and where it looks.

How that is shown is `engine.page`'s business.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from config.schema import ModelConfig
from engine.loading import TrainedModel
from model import GPT, MultiHeadAttention, attention_weights

NUM_LIKELIEST = 10  # next tokens that are kept for each position
MAX_TOKENS = 10_000  # of a text, the first are inspected
MAX_NUMBERS = 2_000_000  # kept of attention, in fp32; so many positions are recorded as fit into them


@dataclass(frozen=True)
class Attention:
    """What every head of every layer computes at the first P positions of a text; L layers, fp32 on the CPU.

    As they enter the formula: queries and keys normalised and rotated where the architecture does that.
    """

    q: Tensor  # (L, nh, P, hs)
    k: Tensor  # (L, nh, P, hs)
    v: Tensor  # (L, nh, P, hs)
    weights: Tensor  # (L, nh, P, P): row i tells how much position i looks at each; 0 above the diagonal


@dataclass(frozen=True)
class Inspection:
    """A text of N tokens as a model sees it. Position i is that of token i, counted from 0."""

    ids: Sequence[int]  # N
    surprises: Tensor  # (N) in bits: -log2 of the probability that the token was given; nan for the first
    ranks: Tensor  # (N): 1 where the token was thought the likeliest; 0 for the first
    likeliest: Tensor  # (N, K): the ids that are likeliest after each position, with the likeliest first
    probabilities: Tensor  # (N, K): theirs
    attention: Attention


@torch.inference_mode()
def inspect(trained: TrainedModel, ids: Sequence[int]) -> Inspection:
    """What the model does with a text of at least one token, of at most `MAX_TOKENS`.

    What does not fit into one window is read in windows that overlap by half.
    """
    assert 1 <= len(ids) <= MAX_TOKENS
    model, runtime = trained.model, trained.runtime
    all_ids = torch.tensor(ids)
    surprises, ranks = torch.full((len(ids),), math.nan), torch.zeros(len(ids), dtype=torch.int64)
    num_likeliest = min(NUM_LIKELIEST, model.vocab_size)
    likeliest = torch.zeros(len(ids), num_likeliest, dtype=torch.int64)
    probabilities = torch.zeros(len(ids), num_likeliest)
    recorded: list[tuple[Tensor, ...]] = []
    for window, new in windows(len(ids), model.config.context_length):
        is_first = window.start == 0
        recording = record_attention(model, recorded, num_recorded(model.config, len(ids)))
        with runtime.autocast(), recording if is_first else contextlib.nullcontext():
            hidden = model.hidden_states(all_ids[None, window].to(runtime.device))  # (1, T, C)
            logits = model.lm_head(hidden[0, new.start - window.start :])  # (N, V) of the new positions
        expected = torch.log_softmax(logits.float().cpu(), dim=-1)
        best = expected.topk(num_likeliest, dim=-1)
        likeliest[new], probabilities[new] = best.indices, best.values.exp()
        targets = all_ids[new.start + 1 : new.stop + 1, None]
        given = expected[: len(targets)].gather(-1, targets)  # (N, 1)
        following = slice(new.start + 1, new.start + 1 + len(targets))
        surprises[following] = -given[:, 0] / math.log(2)
        ranks[following] = 1 + (expected[: len(targets)] > given).sum(dim=-1)
    attention = Attention(*(torch.stack(layers).cpu() for layers in zip(*recorded, strict=True)))
    return Inspection(ids, surprises, ranks, likeliest, probabilities, attention)


def windows(num_tokens: int, context_length: int) -> Iterator[tuple[slice, slice]]:
    """The windows in which a text is read, and of each the positions that no earlier window had."""
    start, read = 0, 0
    while read < num_tokens:
        start = min(start, max(0, num_tokens - context_length))  # the last one is full, too
        end = min(start + context_length, num_tokens)
        yield slice(start, end), slice(read, end)
        start, read = start + max(1, context_length // 2), end


def num_recorded(config: ModelConfig, num_tokens: int) -> int:
    """How many positions of a text are recorded: those of the first window, as far as `MAX_NUMBERS` goes."""
    vectors = 3 * config.num_layers * config.d_model  # of a position
    maps = config.num_layers * config.num_heads  # of which a position has a row, of half their width in the mean
    fitting = (math.sqrt(vectors**2 + 2 * maps * MAX_NUMBERS) - vectors) / maps  # vectors P + maps P² / 2 = the limit
    return max(1, min(num_tokens, config.context_length, int(fitting)))


@contextlib.contextmanager
def record_attention(model: GPT, recorded: list[tuple[Tensor, ...]], num_positions: int) -> Iterator[None]:
    """While inside, each block adds q, k, v and the weights of its heads at the first positions of its first text.

    The weights are those of `model.attention_weights`, the written-out formula, in fp32. A fused kernel, which may
    compute the block's own output, never has them; it gives the same to rounding.
    """

    def record(attention: MultiHeadAttention, inputs: tuple[Tensor, ...]) -> None:
        x, rotary, *_ = inputs
        q, k, v = (each[0, :, :num_positions].float() for each in attention.project(x, rotary))  # each (nh, P, hs)
        with torch.autocast(x.device.type, enabled=False):
            recorded.append((q, k, v, attention_weights(q, k)))

    heads = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [attention.register_forward_pre_hook(record) for attention in heads]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

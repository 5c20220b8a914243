"""A trained model made fast for writing: one new position of every row per call.

It computes what `model.GPT` computes, from the same weights, in as few operations as PyTorch has for it: with one row
an operation costs more than what it works out. Which token is written is not decided here.

Shapes in the comments are those of `model.py`; B are the rows: texts that are written side by side.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.row_products import RowFunction, row_product
from model import GPT, Block, FeedForward, GatedFeedForward, KVCache, MultiHeadAttention

PREFILL_TOKENS = 4096  # of several rows in one pass: enough to keep a processor busy, few enough for its memory


@dataclass(frozen=True)
class Place:
    """Where the new position of every row stands, worked out once for all layers."""

    position: int | Tensor  # of all rows, or (B)
    end: int  # S, of the longest row
    mask: Tensor | None  # (B, 1, 1, S): -inf behind the end of a shorter row


class Decoder:
    """Rows of a model in evaluation mode, each with the keys and values of its own positions, `lengths` of them.

    `capacity` is the number of positions that a row has room for, at most the window. `dtype` is the precision of the
    matrix products; `int8` computes them with weights of 8 bits, those of a model that `round_to_int8` has changed.
    Once the model's weights change, make a new one.
    """

    def __init__(
        self, model: GPT, rows: int, capacity: int, *, dtype: torch.dtype = torch.float32, int8: bool = False
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.device = model.token_embedding.weight.device
        self.capacity = min(capacity, model.config.context_length)
        self.lengths = [0] * rows
        product = partial(row_product, dtype=dtype, rows=rows, int8=int8)
        blocks = cast(Iterable[Block], model.blocks)
        self.layers = [Layer(model, block, product, rows=rows, capacity=self.capacity) for block in blocks]
        self.final_norm = fast_norm(model.final_norm)
        self.lm_head = product(model.lm_head)
        self.last_read: tuple[tuple[int, ...], KVCache] | None = None

    @torch.inference_mode()
    def prefill(self, texts: Mapping[int, Sequence[int]]) -> None:
        """Let each row begin anew with these ids: none, or fewer than it has room for."""
        rows_of: dict[tuple[int, ...], list[int]] = {}  # rows that begin alike share the work
        for row, ids in texts.items():
            self.lengths[row] = len(ids)
            if ids:
                rows_of.setdefault(tuple(ids), []).append(row)
        if len(rows_of) == 1:
            self.prefill_alike(*rows_of.popitem())
        for length in sorted({len(ids) for ids in rows_of}):
            beginnings = [ids for ids in rows_of if len(ids) == length]
            at_once = max(1, PREFILL_TOKENS // length)
            for first in range(0, len(beginnings), at_once):
                cache = self.read(beginnings[first : first + at_once])
                for which, ids in enumerate(beginnings[first : first + at_once]):
                    self.fill(rows_of[ids], cache, which)

    def prefill_alike(self, ids: tuple[int, ...], rows: Sequence[int]) -> None:
        """The same for rows of one beginning, which is kept in mind: often the next ones begin with it, too."""
        if self.last_read is None or self.last_read[0] != ids:
            self.last_read = (ids, self.read([ids]))
        self.fill(rows, self.last_read[1], 0)

    def read(self, texts: Sequence[Sequence[int]]) -> KVCache:
        """The keys and values of some texts of one length."""
        cache = KVCache(self.model, len(texts), len(texts[0]))
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            self.model.hidden_states(torch.tensor(texts, device=self.device), cache)
        return cache

    def fill(self, rows: Sequence[int], cache: KVCache, which: int) -> None:
        """Give the rows what the cache holds of one text."""
        for layer, read in zip(self.layers, cache.layers, strict=True):
            layer.cache[0, rows, :, : cache.length] = read.keys[which]  # (len(rows), nh, T, hs)
            layer.cache[1, rows, :, : cache.length] = read.values[which]

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """Add one token to every row: (B) → logits for the one after it, (B, V) in fp32."""
        place = self.next_place()
        x = F.embedding(tokens, self.model.token_embedding.weight)  # (B, C)
        if self.model.config.architecture == "gpt2":
            x = x + self.model.position_embedding.weight[place.position]
        for layer in self.layers:
            x = layer(x, place)
        self.lengths = [length + 1 for length in self.lengths]
        return self.lm_head(self.final_norm(x)).float()  # (B, V)

    def next_place(self) -> Place:
        """Where the rows' next positions are; no row may be full."""
        longest = max(self.lengths)
        assert longest < self.capacity, "a row is full"
        if min(self.lengths) == longest:
            return Place(longest, longest + 1, None)
        positions = torch.tensor(self.lengths, device=self.device)
        is_behind = torch.arange(longest + 1, device=self.device) > positions[:, None]  # (B, S)
        mask = torch.zeros(is_behind.shape, device=self.device).masked_fill_(is_behind, -math.inf)
        return Place(positions, longest + 1, mask[:, None, None])

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        for layer in self.layers:
            layer.cache = layer.cache[:, rows]
        self.lengths = [self.lengths[row] for row in rows]


class Layer:
    """One block for one new position of each row."""

    def __init__(
        self, model: GPT, block: Block, product: Callable[[nn.Linear], RowFunction], *, rows: int, capacity: int
    ) -> None:
        attention, device = block.attention, model.token_embedding.weight.device
        self.num_heads, self.head_size = attention.num_heads, attention.head_size
        self.cache = torch.zeros((2, rows, self.num_heads, capacity, self.head_size), device=device)  # keys, values
        self.rotate = fast_rotation(attention, model.rotary) if model.config.architecture == "qwen3" else None
        self.norm_1, self.norm_2 = fast_norm(block.norm_1), fast_norm(block.norm_2)
        self.qkv, self.output = product(attention.qkv), product(attention.output)
        self.feed_forward = fast_feed_forward(block.feed_forward, product)

    def __call__(self, x: Tensor, place: Place) -> Tensor:
        """(B, C) → (B, C)."""
        x = x + self.output(self.attend(self.norm_1(x), place))
        return x + self.feed_forward(self.norm_2(x))

    def attend(self, x: Tensor, place: Place) -> Tensor:
        """All heads' mixtures of values, side by side: (B, C) → (B, C)."""
        # `select` and `narrow` take half as long as an index does.
        qkv = self.qkv(x).float().view(-1, 3, self.num_heads, self.head_size)  # (B, 3, nh, hs)
        if self.rotate is not None:
            self.rotate(qkv.narrow(1, 0, 2), place.position)
        new = qkv.narrow(1, 1, 2)  # (B, 2, nh, hs): key, value
        if isinstance(place.position, int):
            self.cache.select(3, place.position).copy_(new.transpose(0, 1))  # (2, B, nh, hs)
        else:
            rows = torch.arange(len(new), device=new.device)
            self.cache[:, rows, :, place.position] = new
        keys, values = self.cache.narrow(3, 0, place.end).unbind()  # (B, nh, S, hs)
        q = qkv.select(1, 0).unsqueeze(2)  # (B, nh, 1, hs)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=place.mask).flatten(1)  # (B, C)


def fast_norm(norm: nn.Module) -> RowFunction:
    """What a norm of `model.make_norm` computes, in fp32."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x: F.layer_norm(x, shape, weight, bias, eps)
    scaled, floor = for_dividing(norm)
    return lambda x: divide_by_norm(x, floor) * scaled


def divide_by_norm(x: Tensor, floor: Tensor) -> Tensor:
    """x / √(‖x‖² + floor²): (..., width) → the same. The root of a sum of two squares is one operation."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)


def for_dividing(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight (width) and the floor (scalar) of an RMSNorm, which takes a mean of squares, for `divide_by_norm`."""
    assert isinstance(norm, nn.RMSNorm)
    assert norm.eps is not None
    width = norm.weight.numel()
    return norm.weight.detach() * math.sqrt(width), torch.tensor(math.sqrt(width * norm.eps), device=norm.weight.device)


def fast_feed_forward(
    feed_forward: FeedForward | GatedFeedForward, product: Callable[[nn.Linear], RowFunction]
) -> RowFunction:
    """What a feed-forward layer computes."""
    up, down = product(feed_forward.up), product(feed_forward.down)
    if isinstance(feed_forward, FeedForward):
        return lambda x: down(F.gelu(up(x), approximate="tanh"))
    gate = product(feed_forward.gate)
    return lambda x: down(F.silu(gate(x)) * up(x))


def fast_rotation(attention: MultiHeadAttention, rotary: Tensor) -> Callable[[Tensor, int | Tensor], Tensor]:
    """What normalises and rotates queries and keys, (B, 2, nh, hs), in place, for a position or one of each row (B).

    The weights of the norms are put into the tables of the rotation: (w·x) · cos + swapped(w·x) · sin is
    x · (w·cos) + swapped(x) · (swapped(w)·sin).
    """
    half = attention.head_size // 2
    (q_weight, floor), (k_weight, _) = for_dividing(attention.q_norm), for_dividing(attention.k_norm)
    weights = torch.stack([q_weight, k_weight])[:, None]  # (2, 1, hs)
    cos, signed_sin = rotary[:, :, None, None]  # (context_length, 1, 1, hs)
    cosines, sines = cos * weights, signed_sin * weights.roll(half, dims=-1)  # (context_length, 2, 1, hs)

    def rotate(qk: Tensor, position: int | Tensor) -> Tensor:
        normed = divide_by_norm(qk, floor)
        swapped = normed.roll(half, dims=-1)
        return torch.addcmul(normed * cosines[position], swapped, sines[position], out=qk)

    return rotate

"""A GPT: token ids in, logits for the next token out.

Two architectures, both known to the rest of the world: `gpt2` (Radford et al. 2019) and `qwen3` (Qwen3 Technical
Report, arXiv:2505.09388). Training, sampling and files are not this module's business.

Shapes in the comments:
    B   sequences in the batch
    T   new positions, given in this call
    S   visible positions: those in the cache + the new ones
    C   d_model, the residual width
    nh  num_heads
    hs  head_size = C / nh
    V   vocab_size
"""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config.schema import ModelConfig
from errors import DataError

ROTARY_THETA = 10_000.0  # RoFormer (arXiv:2104.09864), section 3.2.2
INITIAL_STD = 0.02  # of weights and embeddings, in both architectures
WRITTEN_OUT_UP_TO = 512  # positions, in bf16 on a CPU; the measurement behind it: bench/attention.py


def causal_mask(T: int, S: int, like: Tensor) -> Tensor:
    """(T, S): 0 where a new position may look, -inf where it would look into the future.

    The T new positions are the last of the S visible ones, so new position t sees the first S - T + t + 1.
    """
    return torch.full((T, S), -math.inf, dtype=like.dtype, device=like.device).triu(S - T + 1)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(QKᵀ/√hs + causal mask): how much each new position looks at each visible one; rows sum to one.

    q (B, nh, T, hs), k (B, nh, S, hs) → (B, nh, T, S). "Attention Is All You Need" (arXiv:1706.03762), equation 1.
    """
    T, hs = q.shape[-2:]
    scores = (q / math.sqrt(hs)) @ k.transpose(-2, -1)  # (B, nh, T, S); q is smaller than the scores to divide
    if T > 1:  # a single new position has no future to hide
        scores += causal_mask(T, k.shape[-2], like=scores)
    return torch.softmax(scores, dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, fused: bool = False) -> Tensor:
    """softmax(QKᵀ/√hs + causal mask)·V: for each new position, a mixture of the values it may look at.

    q (B, nh, T, hs), k and v (B, nh, S, hs) → (B, nh, T, hs). `dropout` is the probability of dropping a weight.
    `fused` computes the same in one PyTorch kernel, which never stores the (T, S) weights.
    """
    if not fused:
        return drop(attention_weights(q, k), dropout) @ v
    T, S = q.shape[-2], k.shape[-2]
    if T in (1, S):  # PyTorch's own causal mask takes the new positions for the first ones, not for the last
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=T > 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_mask(T, S, like=q), dropout_p=dropout)


def drop(x: Tensor, p: float) -> Tensor:
    """Zero a share `p` of the values and scale up the others, so that the mean stays: any shape → the same.

    On a CPU a random byte decides about each value, several times as fast as a number drawn for each: `p` then counts
    in 256ths. The measurement behind it: bench/kernels.py.
    """
    if p == 0 or x.device.type != "cpu":
        return F.dropout(x, p)
    dropped = min(max(round(256 * p), 1), 255)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int32).random_(-(2**31), 2**31)  # of four bytes
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * kept * (256 / (256 - dropped))


class Dropout(nn.Dropout):
    """`drop` in training, nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def prefers_fused(q: Tensor, k: Tensor) -> bool:
    """Whether the fused kernel is the faster one for these tensors: always, but in bf16 on a CPU with short windows."""
    return q.device.type != "cpu" or q.dtype == torch.float32 or k.shape[-2] > WRITTEN_OUT_UP_TO


class MultiHeadAttention(nn.Module):
    """Causal self-attention: (B, T, C) → (B, T, C). All heads' queries, keys and values are one matrix product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.architecture == "gpt2"
        self.num_heads = config.num_heads
        self.head_size = config.head_size
        self.dropout = config.dropout if config.architecture == "gpt2" else 0.0
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=bias)
        self.output = nn.Linear(config.d_model, config.d_model, bias=bias)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if config.architecture == "qwen3":
            self.q_norm = make_norm(config, config.head_size)
            self.k_norm = make_norm(config, config.head_size)

    def forward(self, x: Tensor, rotary: Tensor | None = None, cache: "LayerCache | None" = None) -> Tensor:
        """`rotary` (2, T, hs): tables of the new positions, or None. `cache` is read and extended."""
        q, k, v = self.project(x, rotary)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, nh, S, hs)
        dropout = self.dropout if self.training else 0.0
        x = attend(q, k, v, dropout=dropout, fused=prefers_fused(q, k))
        x = x.transpose(1, 2).flatten(2)  # (B, T, C): the heads side by side
        return self.output(x)

    def project(self, x: Tensor, rotary: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, each (B, nh, T, hs), normalised and rotated where that is due."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_size))  # (B, T, 3, nh, hs)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, nh, T, hs)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        return q.to(v.dtype), k.to(v.dtype), v  # norm and rotation are in fp32, the products need not be


def rotary_tables(head_size: int, context_length: int) -> Tensor:
    """(2, context_length, hs): what `rotate` takes, for angles position · theta^(-2i/hs) of the pairs (i, i + hs/2).

    RoFormer (arXiv:2104.09864), equation 15, in the half-split layout of GPT-NeoX and Qwen.
    """
    frequencies = ROTARY_THETA ** (-torch.arange(0, head_size, 2).float() / head_size)  # (hs/2)
    angles = torch.arange(context_length).float()[:, None] * frequencies  # (context_length, hs/2)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + hs/2]) by its position's angle, so that a score depends on distance alone.

    (left, right) becomes (left · cos - right · sin, right · cos + left · sin). x (B, nh, T, hs), rotary (2, T, hs),
    the first half of its sines negative → (B, nh, T, hs).
    """
    cos, signed_sin = rotary
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # (right, left)
    return torch.addcmul(x * cos, swapped, signed_sin)


class FeedForward(nn.Module):
    """GPT-2's two layers with a GELU between them: (B, T, C) → (B, T, C)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.feed_forward_width)
        self.down = nn.Linear(config.feed_forward_width, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class GatedFeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202, section 2): of two inner layers, one opens and shuts the other. (B, T, C) → same."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.feed_forward_width, bias=False)
        self.up = nn.Linear(config.d_model, config.feed_forward_width, bias=False)
        self.down = nn.Linear(config.feed_forward_width, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class RMSNormFunction(torch.autograd.Function):
    """x / √(mean(x²) + eps) · weight with its gradient written out: on a CPU PyTorch's own takes far longer.

    x (..., width), weight (width) → (..., width). The measurement behind it: bench/kernels.py.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)  # (..., 1)
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        by_weight = grad * normed
        # Stretching x changes nothing, so the part of the gradient that points along x is taken out.
        along = (by_weight @ weight).div_(-weight.numel()).unsqueeze(-1)  # (..., 1)
        grad_x = (grad * weight).addcmul_(normed, along).mul_(scale)
        return grad_x, by_weight.flatten(0, -2).sum(0), None


class RMSNorm(nn.RMSNorm):
    """x / √(mean(x²) + eps) · weight (arXiv:1910.07467, equation 4), in fp32 also where x is bf16."""

    def forward(self, x: Tensor) -> Tensor:
        x, weight = x.float(), self.weight.float()
        if x.device.type == "cpu":
            normed = cast(Tensor, RMSNormFunction.apply(x, weight, self.eps))  # type: ignore[no-untyped-call]
        else:
            normed = F.rms_norm(x, self.normalized_shape, weight, self.eps)
        return normed.to(self.weight.dtype)


def make_norm(config: ModelConfig, width: int) -> nn.Module:
    """The architecture's normalisation of the last dimension, `width` wide."""
    if config.architecture == "gpt2":
        return nn.LayerNorm(width, eps=1e-5)
    return RMSNorm(width, eps=1e-6)


class Block(nn.Module):
    """Attention, then feed-forward, each normalised before and added to the residual stream: (B, T, C) → (B, T, C)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_1 = make_norm(config, config.d_model)
        self.attention = MultiHeadAttention(config)
        self.norm_2 = make_norm(config, config.d_model)
        self.feed_forward = FeedForward(config) if config.architecture == "gpt2" else GatedFeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, rotary: Tensor | None = None, cache: "LayerCache | None" = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x), rotary, cache))
        return x + self.dropout(self.feed_forward(self.norm_2(x)))


class GPT(nn.Module):
    """Embeddings, a stack of blocks, and a head that scores every token of the vocabulary."""

    rotary: Tensor

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.token_embedding = nn.Embedding(vocab_size, config.d_model)
        if config.architecture == "gpt2":
            self.position_embedding = nn.Embedding(config.context_length, config.d_model)
            self.dropout = Dropout(config.dropout)
        else:
            tables = rotary_tables(config.head_size, config.context_length)
            self.register_buffer("rotary", tables, persistent=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = make_norm(config, config.d_model)
        self.lm_head = nn.Linear(config.d_model, vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight
        self.initialise()

    def forward(self, idx: Tensor, cache: "KVCache | None" = None) -> Tensor:
        """Logits for the token after each new position: idx (B, T) → (B, T, V).

        With a `cache`, idx holds only the new tokens; they are added to it. Raises `DataError` where the positions
        would exceed `context_length`.
        """
        return self.lm_head(self.hidden_states(idx, cache))  # (B, T, V)

    def hidden_states(self, idx: Tensor, cache: "KVCache | None" = None) -> Tensor:
        """What the head reads the next token from: idx (B, T) → (B, T, C). Else as `forward`."""
        start = 0 if cache is None else cache.length
        positions = self.positions(start, idx.shape[1])
        x = self.token_embedding(idx)  # (B, T, C)
        rotary = None
        if self.config.architecture == "gpt2":
            x = self.dropout(x + self.position_embedding.weight[positions])
        else:
            rotary = self.rotary[:, positions]  # (2, T, hs)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotary, None if cache is None else cache.layers[layer])
        return self.final_norm(x)

    def positions(self, start: int, T: int) -> slice:
        """The T positions from `start` on, or a `DataError` where the window has no room for them."""
        context_length = self.config.context_length
        if start + T > context_length:
            raise DataError(
                f"a sequence of {start + T} tokens is longer than the model's context_length of {context_length}; "
                f"give it at most {context_length} tokens"
            )
        return slice(start, start + T)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw fresh weights as each architecture was published.

        Weights and embeddings are normal with a standard deviation of 0.02, biases zero, norms one. GPT-2 divides
        the deviation of the layers that write to the residual stream by √(2 · num_layers) (Radford et al. 2019,
        section 2.3), Qwen3 does not.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
                continue
            std = INITIAL_STD
            if self.config.architecture == "gpt2" and name.endswith(("output.weight", "down.weight")):
                std /= math.sqrt(2 * self.config.num_layers)
            nn.init.normal_(parameter, std=std)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token: logits (B, T, V), targets (B, T) → scalar."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LayerCache:
    """Keys and values of one block for the positions seen so far, in memory reserved once."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys  # (B, nh, capacity, hs)
        self.values = values
        self.length = 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add k, v (B, nh, T, hs); all that is visible now, each (B, nh, S, hs)."""
        end = self.length + k.shape[2]
        assert end <= self.keys.shape[2], "the cache was made for fewer positions"
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class KVCache:
    """Keys and values of every block, so that a new token costs one position instead of the whole window.

    `capacity` is the number of positions it has room for, at most the window. A key already holds its rotation,
    so what is cached stays right as long as no position moves.
    """

    def __init__(self, model: GPT, batch_size: int, capacity: int) -> None:
        config = model.config
        shape = (batch_size, config.num_heads, min(capacity, config.context_length), config.head_size)
        device = model.token_embedding.weight.device

        def room() -> Tensor:
            return torch.zeros(shape, device=device)

        self.layers = [LayerCache(room(), room()) for _ in model.blocks]

    @property
    def length(self) -> int:
        """Positions held."""
        return self.layers[0].length


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """How many numbers a model of this shape learns; a tied head counts once."""
    C, ff = config.d_model, config.feed_forward_width
    embeddings = vocab_size * C * (1 if config.tie_embeddings else 2)
    if config.architecture == "gpt2":
        attention = (C + 1) * 3 * C + (C + 1) * C
        feed_forward = (C + 1) * ff + (ff + 1) * C
        return embeddings + config.context_length * C + config.num_layers * (attention + feed_forward + 4 * C) + 2 * C
    attention = 4 * C * C + 2 * config.head_size
    return embeddings + config.num_layers * (attention + 3 * C * ff + 2 * C) + C


def flops_per_token(config: ModelConfig, vocab_size: int) -> int:
    """Floating-point operations that training spends on one token, forward and backward.

    Six per weight that takes part in a matrix product, and 12 · C · T per layer for attention over a full window
    (PaLM, arXiv:2204.02311, appendix B). Embedding look-ups, norms and biases are not counted.
    """
    C, ff = config.d_model, config.feed_forward_width
    feed_forward = (2 if config.architecture == "gpt2" else 3) * C * ff
    weights = config.num_layers * (4 * C * C + feed_forward) + vocab_size * C
    return 6 * weights + 12 * config.num_layers * C * config.context_length

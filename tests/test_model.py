"""The model against its formula, its published twins, and what every GPT must hold to."""

import math

import pytest
import torch
from torch import Tensor, nn

from config.schema import ModelConfig
from errors import DataError
from model import (
    GPT,
    KVCache,
    MultiHeadAttention,
    RMSNorm,
    attend,
    attention_weights,
    count_parameters,
    drop,
    flops_per_token,
    next_token_loss,
    prefers_fused,
    rotary_tables,
    rotate,
)

VOCAB_SIZE = 11
ARCHITECTURES = ("gpt2", "qwen3")


def tiny(architecture: str, **changes: object) -> ModelConfig:
    settings = {"context_length": 8, "d_model": 16, "num_heads": 2, "num_layers": 2, **changes}
    return ModelConfig(architecture=architecture, **settings)


def make_model(architecture: str, **changes: object) -> GPT:
    torch.manual_seed(0)
    return GPT(tiny(architecture, **changes), VOCAB_SIZE)


def some_ids(batch: int = 3, length: int = 8) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(1))


class Head(nn.Module):
    """One head of self-attention, written out from the formula."""

    def __init__(self, d_model: int, head_size: int, context_length: int, dropout: float) -> None:
        super().__init__()
        self.key = nn.Linear(d_model, head_size, bias=False)
        self.query = nn.Linear(d_model, head_size, bias=False)
        self.value = nn.Linear(d_model, head_size, bias=False)
        self.register_buffer("triangle", torch.tril(torch.ones(context_length, context_length)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)  # (B, T, hs)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])  # (B, T, T)
        scores = scores.masked_fill(self.triangle[:T, :T] == 0, float("-inf"))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return weights @ v  # (B, T, hs)


class HeadByHead(nn.Module):
    """Several heads, one after the other: concatenated, then projected."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads = (
            Head(config.d_model, config.head_size, config.context_length, config.dropout)
            for _ in range(config.num_heads)
        )
        self.heads = nn.ModuleList(heads)
        self.projection = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(torch.cat([head(x) for head in self.heads], dim=-1))


@torch.no_grad()
def carry_over(plain: HeadByHead, ours: MultiHeadAttention) -> None:
    """Give our attention the weights of the plain one; biases that the plain one lacks become zero."""
    maps = [[getattr(head, name).weight for head in plain.heads] for name in ("query", "key", "value")]
    ours.qkv.weight.copy_(torch.cat([torch.cat(heads) for heads in maps]))
    ours.output.weight.copy_(plain.projection.weight)
    if ours.qkv.bias is not None:
        ours.qkv.bias.zero_()
        ours.output.bias.copy_(plain.projection.bias)
    else:
        plain.projection.bias.zero_()


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_attention_equals_a_class_per_head_written_out_from_the_formula(num_heads: int) -> None:
    config = tiny("gpt2", num_heads=num_heads)
    plain, ours = HeadByHead(config), MultiHeadAttention(config)
    carry_over(plain, ours)
    x = torch.randn(3, 8, 16, requires_grad=True)
    expected, found = plain(x), ours(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    gradient = torch.randn_like(expected)
    ours_gradient = torch.autograd.grad(found, x, gradient)[0]
    torch.testing.assert_close(ours_gradient, torch.autograd.grad(expected, x, gradient)[0], atol=1e-5, rtol=0)


def test_qwen3_attention_with_neutral_norms_and_rotation_equals_the_formula_too() -> None:
    config = tiny("qwen3")
    plain, ours = HeadByHead(config), MultiHeadAttention(config)
    carry_over(plain, ours)
    ours.q_norm, ours.k_norm = nn.Identity(), nn.Identity()
    unturned = torch.stack((torch.ones(8, 8), torch.zeros(8, 8)))  # cosine and sine of angle zero
    x = torch.randn(3, 8, 16)
    torch.testing.assert_close(ours(x, unturned), plain(x), atol=1e-5, rtol=0)


def test_attention_dropout_drops_weights_like_the_written_out_heads() -> None:
    config = tiny("gpt2", num_heads=1, dropout=0.5)
    plain, ours = HeadByHead(config), MultiHeadAttention(config)
    carry_over(plain, ours)
    x = torch.randn(3, 8, 16)
    torch.manual_seed(5)
    expected = plain(x)
    torch.manual_seed(5)
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=0)
    assert not torch.equal(ours(x), ours(x))
    assert torch.equal(ours.eval()(x), ours(x))


@pytest.mark.parametrize(("T", "S"), [(1, 1), (8, 8), (1, 6), (3, 7), (300, 300)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_both_paths_of_attention_agree(T: int, S: int, dtype: torch.dtype, tolerance: float) -> None:
    q, k, v = (torch.randn(2, 3, length, 8, dtype=dtype) for length in (T, S, S))
    written_out, fused = attend(q, k, v), attend(q, k, v, fused=True)
    torch.testing.assert_close(written_out, fused, atol=tolerance, rtol=tolerance)


def test_the_written_out_path_drops_weights_and_scales_the_rest_up() -> None:
    q, k, v = (torch.randn(2, 3, 8, 8) for _ in range(3))
    torch.manual_seed(5)
    expected = drop(attention_weights(q, k), 0.5) @ v
    torch.manual_seed(5)
    assert torch.equal(attend(q, k, v, dropout=0.5), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("p", "share"), [(0.1, 26 / 256), (0.5, 0.5), (0.001, 1 / 256), (0.999, 255 / 256)])
def test_dropping_zeroes_a_share_and_keeps_the_mean(p: float, share: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(1001, 1003, dtype=dtype, requires_grad=True)
    y = drop(x, p)
    assert y.dtype == dtype
    assert (y == 0).float().mean().item() == pytest.approx(share, abs=2e-3)
    scaled = torch.tensor(1 / (1 - share)).to(dtype)
    assert set(y.unique().tolist()) == {0.0, scaled.item()}
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert not torch.equal(drop(x, p), y), "the next draw is another one"


def test_dropping_nothing_is_nothing_and_odd_sizes_work() -> None:
    x = torch.randn(3, 5, 7)
    assert torch.equal(drop(x, 0.0), x)
    for size in range(9):
        assert drop(torch.ones(size), 0.5).shape == (size,)


def test_the_path_is_written_out_for_short_windows_of_bf16_on_a_cpu_and_fused_elsewhere() -> None:
    for dtype, length, fused in (
        (torch.bfloat16, 512, False),
        (torch.bfloat16, 513, True),
        (torch.float32, 8, True),
    ):
        q = torch.zeros(1, 1, length, 8, dtype=dtype)
        assert prefers_fused(q, q) is fused
    q = torch.zeros(1, 1, 8, 8, dtype=torch.bfloat16, device="meta")
    assert prefers_fused(q, q)


def test_attention_weights_sum_to_one_and_never_look_ahead() -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 7, 8)  # positions 3 to 6 of 7 are new
    weights = attention_weights(q, k)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 4))
    for t in range(4):
        assert (weights[:, :, t, : 3 + t + 1] > 0).all()
        assert (weights[:, :, t, 3 + t + 1 :] == 0).all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("context_length", [8, 600])
@pytest.mark.parametrize("half", [False, True])  # in bf16, a short window takes the written-out path on a CPU
def test_changing_a_token_leaves_the_logits_before_it_bit_identical(
    architecture: str, context_length: int, half: bool
) -> None:
    model = make_model(architecture, context_length=context_length).eval()
    idx = some_ids(2, context_length)
    changed = idx.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCAB_SIZE
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        before, after = model(idx), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_rotary_scores_depend_on_relative_distance_only() -> None:
    tables = rotary_tables(head_size=8, context_length=64)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(q_position: int, k_position: int) -> Tensor:
        turned_q = rotate(q, tables[:, q_position : q_position + 1])
        return (turned_q * rotate(k, tables[:, k_position : k_position + 1])).sum()

    torch.testing.assert_close(score(9, 4), score(45, 40), atol=1e-5, rtol=0)
    torch.testing.assert_close(score(5, 0), score(63, 58), atol=1e-5, rtol=0)
    assert not torch.allclose(score(9, 4), score(9, 5), atol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False}, {"d_ff": 20, "num_layers": 3, "num_heads": 4}])
def test_parameter_count_follows_its_formula(architecture: str, changes: dict[str, object]) -> None:
    config = tiny(architecture, **changes)
    model = GPT(config, VOCAB_SIZE)
    assert count_parameters(config, VOCAB_SIZE) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flops_are_six_per_matrix_weight_and_twelve_per_visible_position(architecture: str) -> None:
    model = make_model(architecture, tie_embeddings=False)
    products = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    attention = 12 * 2 * 16 * 8  # 12 · num_layers · d_model · context_length
    assert flops_per_token(model.config, VOCAB_SIZE) == 6 * products + attention


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_is_off_in_evaluation(architecture: str) -> None:
    model = make_model(architecture, dropout=0.5)
    idx = some_ids()
    assert not torch.equal(model(idx), model(idx))
    model.eval()
    assert torch.equal(model(idx), model(idx))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_gradients_reach_every_parameter(architecture: str, tie_embeddings: bool) -> None:
    model = make_model(architecture, tie_embeddings=tie_embeddings)
    next_token_loss(model(some_ids()), some_ids()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_sequence_longer_than_the_window_is_refused(architecture: str) -> None:
    model = make_model(architecture)
    with pytest.raises(DataError, match="a sequence of 9 tokens is longer than the model's context_length of 8"):
        model(some_ids(1, 9))
    cache = KVCache(model, 1, 8)
    model(some_ids(1, 8), cache)
    with pytest.raises(DataError, match="a sequence of 9 tokens"):
        model(some_ids(1, 1), cache)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("parts", [[8], [1] * 8, [3, 1, 4], [5, 3]])
def test_logits_with_a_cache_equal_those_without(architecture: str, parts: list[int]) -> None:
    model = make_model(architecture).eval()
    idx = some_ids()
    cache = KVCache(model, 3, 8)
    logits = torch.cat([model(piece, cache) for piece in idx.split(parts, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(idx), atol=1e-5, rtol=0)
    assert cache.length == 8


def test_the_room_of_a_cache_never_exceeds_the_window() -> None:
    cache = KVCache(make_model("qwen3"), 3, 1000)
    assert cache.layers[0].keys.shape == (3, 2, 8, 8)


def test_the_loss_is_the_mean_of_minus_log_probability() -> None:
    logits, targets = torch.randn(2, 3, VOCAB_SIZE), some_ids(2, 3)
    expected = -torch.log_softmax(logits, dim=-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(next_token_loss(logits, targets), expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_untrained_model_finds_all_tokens_about_equally_likely(architecture: str) -> None:
    unrelated_targets = some_ids(64).roll(1, dims=0)
    loss = next_token_loss(make_model(architecture)(some_ids(64)), unrelated_targets)
    assert abs(loss.item() - math.log(VOCAB_SIZE)) < 0.1


def test_initial_weights_have_the_published_deviations() -> None:
    for architecture, residual_std in (("gpt2", 0.02 / math.sqrt(2 * 2)), ("qwen3", 0.02)):
        model = make_model(architecture, d_model=256, num_heads=4)
        block = model.blocks[0]
        for weight, std in (
            (model.token_embedding.weight, 0.02),
            (block.attention.qkv.weight, 0.02),
            (block.attention.output.weight, residual_std),
            (block.feed_forward.down.weight, residual_std),
        ):
            assert weight.std().item() == pytest.approx(std, rel=0.05)
        assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))
        assert (block.norm_1.weight == 1).all()


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Random values everywhere, so that norms, biases and every constant take part in a comparison."""
    for parameter in module.parameters():
        parameter.normal_(std=0.3).add_(0.1)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_logits_equal_those_of_transformers_gpt2(tie_embeddings: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")
    reference = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=8,
            n_embd=16,
            n_layer=2,
            n_head=2,
            tie_word_embeddings=tie_embeddings,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    randomise(reference)
    ours = make_model("gpt2", tie_embeddings=tie_embeddings).eval()
    theirs = reference.state_dict()
    names = {
        "norm_1": "ln_1",
        "norm_2": "ln_2",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
    }
    weights = {
        "token_embedding.weight": theirs["transformer.wte.weight"],
        "position_embedding.weight": theirs["transformer.wpe.weight"],
        "final_norm.weight": theirs["transformer.ln_f.weight"],
        "final_norm.bias": theirs["transformer.ln_f.bias"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(2):
        for our_name, their_name in names.items():
            for kind in ("weight", "bias"):
                tensor = theirs[f"transformer.h.{layer}.{their_name}.{kind}"]
                weights[f"blocks.{layer}.{our_name}.{kind}"] = tensor.T if tensor.dim() == 2 else tensor
    ours.load_state_dict(weights)
    torch.testing.assert_close(ours(some_ids()), reference(some_ids()).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_logits_equal_those_of_transformers_qwen3(tie_embeddings: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")
    reference = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=16,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=8,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=tie_embeddings,
        )
    ).eval()
    randomise(reference)
    ours = make_model("qwen3", tie_embeddings=tie_embeddings).eval()
    theirs = {name.removeprefix("model."): tensor for name, tensor in reference.state_dict().items()}
    weights = {
        "token_embedding.weight": theirs["embed_tokens.weight"],
        "final_norm.weight": theirs["norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(2):
        name, block = f"layers.{layer}", f"blocks.{layer}"
        qkv = [theirs[f"{name}.self_attn.{part}_proj.weight"] for part in "qkv"]
        weights |= {
            f"{block}.norm_1.weight": theirs[f"{name}.input_layernorm.weight"],
            f"{block}.norm_2.weight": theirs[f"{name}.post_attention_layernorm.weight"],
            f"{block}.attention.qkv.weight": torch.cat(qkv),
            f"{block}.attention.q_norm.weight": theirs[f"{name}.self_attn.q_norm.weight"],
            f"{block}.attention.k_norm.weight": theirs[f"{name}.self_attn.k_norm.weight"],
            f"{block}.attention.output.weight": theirs[f"{name}.self_attn.o_proj.weight"],
            f"{block}.feed_forward.gate.weight": theirs[f"{name}.mlp.gate_proj.weight"],
            f"{block}.feed_forward.up.weight": theirs[f"{name}.mlp.up_proj.weight"],
            f"{block}.feed_forward.down.weight": theirs[f"{name}.mlp.down_proj.weight"],
        }
    ours.load_state_dict(weights)
    torch.testing.assert_close(ours(some_ids()), reference(some_ids()).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_autocast_changes_the_logits_by_no_more_than_bf16_allows(architecture: str) -> None:
    model = make_model(architecture).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(some_ids())
    torch.testing.assert_close(rounded.float(), model(some_ids()), atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_on_a_gpu_equal_those_on_the_cpu(architecture: str) -> None:
    model = make_model(architecture).eval()
    expected = model(some_ids())
    found = model.cuda()(some_ids().cuda()).cpu()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "silent", "drops"),
    [
        ("gpt2", ("output", "down"), True),  # only the embeddings are left to drop
        ("qwen3", ("output", "down"), False),
        ("qwen3", ("output",), True),  # what the feed-forward part adds
        ("qwen3", ("down",), True),  # what attention adds
    ],
)
def test_dropout_acts_where_the_architecture_has_it(architecture: str, silent: tuple[str, ...], drops: bool) -> None:
    model = make_model(architecture, dropout=0.5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[-2] in silent:
                parameter.zero_()
    assert torch.equal(model(some_ids()), model(some_ids())) is not drops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 3, 4, 8), (1, 8)])
def test_the_gradients_of_rmsnorm_are_those_that_pytorch_derives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(8, eps=1e-6)
    nn.init.normal_(norm.weight, generator=generator)
    x = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    grad = torch.randn(shape, generator=generator)
    reference = nn.functional.rms_norm(x.float(), (8,), norm.weight, 1e-6)
    expected = torch.autograd.grad(reference, (x, norm.weight), grad)
    torch.testing.assert_close(norm(x), reference)
    for ours, theirs in zip(torch.autograd.grad(norm(x), (x, norm.weight), grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_whose_weights_are_bf16_computes_in_bf16(architecture: str) -> None:
    model = GPT(tiny(architecture), VOCAB_SIZE).to(torch.bfloat16)
    logits = model(torch.zeros(2, 8, dtype=torch.int64))
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_rotation_turns_each_pair_as_a_complex_number_turns() -> None:
    tables = rotary_tables(head_size=8, context_length=16)
    x = torch.randn(2, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    left, right = x.chunk(2, dim=-1)
    angles = torch.arange(16)[:, None] * 10_000.0 ** (-torch.arange(4) / 4)
    turned = torch.complex(left, right) * torch.polar(torch.ones(16, 4), angles)
    torch.testing.assert_close(rotate(x, tables), torch.cat((turned.real, turned.imag), dim=-1), atol=1e-5, rtol=1e-5)

"""The products for writing are those of `F.linear`, and 8 bits of a weight are as near to it as they can be."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from commands import ROOT, environment
from torch import nn

from config.schema import ModelConfig
from engine import row_products
from engine.row_products import quantize, round_to_int8, row_product
from model import GPT

SHAPES = [(16, 16), (16, 48), (64, 11), (24, 50), (50, 24), (7, 5), (1, 1), (33, 65)]
KINDS = {
    "fp32": (torch.float32, False, 1e-5),
    "bf16": (torch.bfloat16, False, 2e-2),
    "fp16": (torch.float16, False, 5e-3),
    "int8": (torch.float32, True, 2e-2),
}


def make_layer(inputs, outputs, *, bias):
    """A layer whose results are around 1."""
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(inputs))
    return layer


def make_model(**changes):
    torch.manual_seed(0)
    config = ModelConfig(context_length=8, d_model=16, num_heads=2, num_layers=2, **changes)
    return GPT(config, 11)


@pytest.mark.parametrize("from_weights", [1, row_products.FROM_WEIGHTS_ONE_ROW])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_product_is_that_of_linear(monkeypatch, kind, bias, from_weights):
    monkeypatch.setattr(row_products, "FROM_WEIGHTS_ONE_ROW", from_weights)
    dtype, int8, tolerance = KINDS[kind]
    for inputs, outputs in SHAPES:
        layer = make_layer(inputs, outputs, bias=bias)
        product = row_product(layer, dtype, int8=int8)
        if int8:
            round_to_int8(layer)
        for rows in (1, 2, 3, 16):
            x = torch.randn(rows, inputs)
            before, expected = x.clone(), F.linear(x, layer.weight, layer.bias)
            y = product(x)
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(y.float(), expected, rtol=0, atol=tolerance * scale)
            assert torch.equal(x, before)


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_layer_has_the_same_product_as_a_small_one(bias):
    layer, x = make_layer(512, 1024, bias=bias), torch.randn(2, 512)
    assert layer.weight.numel() >= row_products.FROM_WEIGHTS_ONE_ROW
    with torch.inference_mode():
        torch.testing.assert_close(row_product(layer, torch.float32)(x), layer(x), rtol=0, atol=1e-5)


def test_without_onednn_the_products_are_the_same(monkeypatch):
    monkeypatch.setattr(row_products, "has_onednn", lambda weight: False)
    monkeypatch.setattr(row_products, "FROM_WEIGHTS_ONE_ROW", 1)
    layer, x = make_layer(16, 24, bias=True), torch.randn(2, 16)
    with torch.inference_mode():
        torch.testing.assert_close(row_product(layer, torch.float32)(x), layer(x), rtol=0, atol=1e-5)
        half = row_product(layer, torch.bfloat16)(x)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), layer(x), rtol=0, atol=6e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_leaves_its_layer_alone(kind):
    dtype, int8, _ = KINDS[kind]
    layer = make_layer(16, 24, bias=True)
    before = [parameter.clone() for parameter in layer.parameters()]
    with torch.inference_mode():
        row_product(layer, dtype, int8=int8)(torch.randn(2, 16))
    for parameter, old in zip(layer.parameters(), before, strict=True):
        assert parameter.requires_grad
        assert torch.equal(parameter, old)


def test_eight_bits_are_whole_numbers_half_a_unit_from_the_weight_at_most():
    weight = torch.randn(200, 33) * torch.logspace(-6, 6, 200)[:, None]
    whole, scale = quantize(weight)
    assert whole.dtype == torch.int8
    assert torch.equal(whole.abs().amax(dim=1), torch.full((200,), 127, dtype=torch.int8))
    assert whole.min() >= -127
    distance = (whole * scale[:, None] - weight).abs() / scale[:, None]
    assert distance.max() <= 0.5 + 1e-4
    torch.testing.assert_close(scale, weight.abs().amax(dim=1) / 127)


def test_a_row_of_zeros_stays_zero():
    layer = make_layer(16, 3, bias=False)
    with torch.inference_mode():
        layer.weight[1] = 0
        whole, scale = quantize(layer.weight)
        assert torch.equal(whole[1] * scale[1], torch.zeros(16))
        assert torch.isfinite(scale).all()
        assert scale.min() > 0
        y = row_product(layer, torch.float32, int8=True)(torch.randn(2, 16))
        assert torch.equal(y[:, 1], torch.zeros(2))
        assert y[:, [0, 2]].abs().min() > 0


def test_quantizing_twice_changes_nothing_more():
    weight = torch.randn(5000, 8) * torch.logspace(-9, 9, 5000)[:, None]
    whole, scale = quantize(weight)
    again, same_scale = quantize(whole * scale[:, None])
    assert torch.equal(again, whole)
    assert torch.equal(same_scale, scale)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
def test_rounding_a_model_changes_its_linear_layers_and_nothing_else(architecture, tied):
    model = make_model(architecture=architecture, tie_embeddings=tied)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if tied:  # the head's weight goes by its first name
        linear = linear - {"lm_head.weight"} | {"token_embedding.weight"}
    round_to_int8(model)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad
        if name not in linear:
            assert torch.equal(parameter, before[name]), name
            continue
        whole, scale = quantize(before[name])
        assert torch.equal(parameter, whole * scale[:, None]), name
        assert not torch.equal(parameter, before[name]), name
    assert (model.lm_head.weight is model.token_embedding.weight) == tied
    once = [parameter.clone() for parameter in model.parameters()]
    round_to_int8(model)
    assert all(torch.equal(new, old) for new, old in zip(model.parameters(), once, strict=True))


def test_bf16_works_on_a_processor_for_which_onednn_has_none():
    """Its own setting makes oneDNN take this processor for an older one."""
    code = (
        "import torch; from engine.row_products import *; layer = torch.nn.Linear(8, 4);"
        "f = row_product(layer, torch.bfloat16); x = torch.ones(1, 8);"
        "assert torch.allclose(f(x).float(), layer(x), atol=2e-2)"
    )
    for isa in ("AVX2", "AVX2_VNNI", "AVX512_CORE"):
        env = {**environment(), "ONEDNN_MAX_CPU_ISA": isa}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True)


def test_one_thread_is_enough_for_one_row_of_small_matrices():
    def model(width):
        return GPT(ModelConfig(context_length=8, d_model=width, num_heads=2, num_layers=1), 11)

    assert row_products.is_one_thread_enough(model(16), 1)
    assert not row_products.is_one_thread_enough(model(16), 2)
    assert not row_products.is_one_thread_enough(model(384), 1)

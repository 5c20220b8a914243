"""Products through oneDNN are those of `F.linear`, and are used where they pay and nowhere else."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engine import products
from engine.checkpoint import load_checkpoint, save_checkpoint
from engine.loading import load_model
from engine.products import FastLinear, LinearFunction, install_fast_products, is_slow_with_mkl
from engine.runtime import Runtime

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"),
    reason="this build of torch has no oneDNN",
)
# What torch.cpu.get_capabilities() says of processors.
ZEN_5 = {"avx2": True, "avx512_f": True, "avx_vnni": True, "avx512_bf16": True, "sse4a": True, "cpu_name": "AMD EPYC"}
SHAPES = [(1, 8, 8), (2, 16, 65), (7, 33, 5), (64, 128, 384), (64, 128, 128), (100, 512, 128), (768, 128, 65)]


@pytest.fixture
def zen_5(monkeypatch):
    """A machine on which oneDNN pays, for products of any size."""
    if not torch.backends.mkl.is_available():
        pytest.skip("this build of torch has no MKL")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: ZEN_5)
    monkeypatch.setattr(products, "FROM_MULTIPLICATIONS", 1)


def runtime(precision="fp32", device="cpu"):
    return Runtime(torch.device(device), precision, compile=False, threads=1, reason="")


def random_layer(rows, inputs, outputs, *, bias=True):
    """x, weight, bias and a gradient, such that the results are around 1."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(*rows, inputs), (outputs, inputs), (outputs,)][: 3 if bias else 2]
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    with torch.no_grad():
        tensors[1] /= math.sqrt(inputs)
    return [*tensors, None][:3], torch.randn(*rows, outputs, generator=generator) / math.sqrt(math.prod(rows) or 1)


def results(linear, tensors, gradient):
    """The output and all gradients."""
    y = linear(*tensors)
    used = [tensor for tensor in tensors if tensor is not None]
    return [y, *torch.autograd.grad(y, used, gradient)]


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_values_and_gradients_are_those_of_linear(rows, inputs, outputs, bias):
    for shape in ((rows,), (3, rows), (2, 1, rows)):
        tensors, gradient = random_layer(shape, inputs, outputs, bias=bias)
        expected = results(F.linear, tensors, gradient)
        for got, want in zip(results(LinearFunction.apply, tensors, gradient), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_views_that_are_not_contiguous_give_the_same():
    tensors, gradient = random_layer((6, 16), 32, 48)
    x, weight, bias = tensors
    expected = results(F.linear, tensors, gradient)
    with torch.no_grad():
        x = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
        gradient = gradient.transpose(1, 2).contiguous().transpose(1, 2)
    for got, want in zip(results(LinearFunction.apply, [x, weight, bias], gradient), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    # As the gradient of a sum: one number seen everywhere.
    ones = torch.ones(()).expand(gradient.shape)
    for got, want in zip(results(LinearFunction.apply, tensors, ones), results(F.linear, tensors, ones), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@needs_onednn
def test_what_needs_no_gradient_gets_none(zen_5):
    layer = nn.Linear(8, 4)
    layer.__class__ = FastLinear
    layer.bias.requires_grad_(False)
    layer(torch.ones(2, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.bias.grad is None
    with torch.inference_mode():
        assert not layer(torch.ones(2, 8)).requires_grad


@needs_onednn
@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (8,), (2, 8)])
def test_no_rows_and_single_vectors_are_layers_input_too(zen_5, shape):
    layer = nn.Linear(8, 4)
    x = torch.ones(shape, requires_grad=True)
    expected = [layer(x), *torch.autograd.grad(layer(x).sum(), [x, layer.weight, layer.bias])]
    layer.__class__ = FastLinear
    got = [layer(x), *torch.autograd.grad(layer(x).sum(), [x, layer.weight, layer.bias])]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("tied", ["true", "false"])
@pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
def test_a_model_trains_as_before_and_keeps_its_names(tiny, zen_5, monkeypatch, architecture, tied):
    overrides = (f"model.architecture={architecture}", f"model.tie_embeddings={tied}", "train.grad_accum_steps=2")
    fast = tiny.state(*overrides)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    plain = tiny.state(*overrides)
    assert layers(fast) == {FastLinear}
    assert layers(plain) == {nn.Linear}
    assert list(fast.model.state_dict()) == list(plain.model.state_dict())
    torch.testing.assert_close(tiny.train(fast, 5), tiny.train(plain, 5), rtol=1e-4, atol=1e-4)
    fast.model(torch.zeros(4, 8, dtype=torch.int64)).sum().backward()
    for name, weight in fast.model.named_parameters():
        assert weight.grad.stride() == weight.stride(), name


@needs_onednn
def test_a_resumed_run_goes_on_bit_for_bit(tiny, zen_5):
    straight, broken = tiny.state(), tiny.state()
    losses = tiny.train(straight, 6)
    tiny.train(broken, 3)
    save_checkpoint(tiny.folder / "step.pt", broken.checkpoint({"metrics": 0, "samples": 0}))
    resumed = tiny.state()
    resumed.restore(load_checkpoint(tiny.folder / "step.pt"))
    assert tiny.train(resumed, 3) == losses[3:]
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


@needs_onednn
def test_a_loaded_model_has_them_too(tiny, zen_5):
    run = tiny.run()
    assert {type(m) for m in load_model(str(run.path)).model.modules() if isinstance(m, nn.Linear)} == {FastLinear}


@needs_onednn
def test_small_products_bf16_and_compiled_code_are_left_to_torch(zen_5, monkeypatch):
    layer, x = nn.Linear(8, 4), torch.ones(2, 8)
    layer.__class__ = FastLinear
    assert "LinearFunction" in layer(x).grad_fn.name()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64
    monkeypatch.setattr(products, "FROM_MULTIPLICATIONS", 2 * 8 * 4 + 1)
    assert "LinearFunction" not in layer.float()(x).grad_fn.name()


@needs_onednn
def test_compiled_models_stay_as_they_were(zen_5):
    layer, seen = nn.Linear(8, 4), []
    layer.__class__ = FastLinear

    def look(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(layer, backend=look)(torch.ones(2, 8))
    assert seen == [torch._C._nn.linear]


def layers(state):
    """The kinds of linear layers in a state's model."""
    return {type(module) for module in state.model.modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize(
    ("name", "capabilities", "expected"),
    [
        ("AMD Zen 5", ZEN_5, True),
        ("AMD Zen 4", ZEN_5 | {"avx_vnni": False}, False),
        ("AMD Zen 3", {"avx2": True, "sse4a": True, "avx512_f": False}, False),
        ("Intel Sapphire Rapids", ZEN_5 | {"sse4a": False, "cpu_name": "Intel Xeon"}, False),
        ("Apple M2", {"neon": True, "bf16": True, "architecture": "aarch64"}, False),
        ("unknown", {}, False),
    ],
)
def test_it_is_decided_by_the_kind_of_processor(name, capabilities, expected):
    assert is_slow_with_mkl(capabilities) is expected


@needs_onednn
def test_a_model_is_left_alone_where_it_does_not_pay(zen_5, monkeypatch):
    def kind(where):
        layer = nn.Sequential(nn.Linear(8, 4))
        install_fast_products(layer, where)
        return type(layer[0])

    assert kind(runtime()) is FastLinear
    assert kind(runtime("bf16")) is nn.Linear
    assert kind(runtime(device="meta")) is nn.Linear
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert kind(runtime()) is nn.Linear

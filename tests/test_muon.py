"""Muon against torch's own, and what its direction must be."""

import math

import pytest
import torch
from torch import nn

from engine.muon import POLYNOMIALS, Muon, orthogonal

SHAPES = [(48, 16), (16, 16), (16, 48), (48, 16), (16, 16)]


def matrices() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_updates_equal_those_of_torch_with_its_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.muon.POLYNOMIALS", [(3.4445, -4.775, 2.0315)] * 5)
    monkeypatch.setattr("engine.muon.MARGIN", 1.0)
    ours, theirs = matrices(), matrices()
    our_muon = Muon(ours, learning_rate=0.02, weight_decay=0.1, dtype=torch.bfloat16)
    their_muon = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1)
    for seed in range(3):
        for muon, parameters in ((our_muon, ours), (their_muon, theirs)):
            give_gradients(parameters, seed)
            muon.step()
    for before, our, their in zip(matrices(), ours, theirs, strict=True):
        change, difference = (their - before).norm(), (our - their).norm()
        assert difference < 2e-2 * change


def test_a_parameter_of_several_parts_is_updated_as_these_would_be() -> None:
    whole = nn.Parameter(torch.randn(48, 16, generator=torch.Generator().manual_seed(0)))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().split(16)]
    whole.grad = torch.randn(48, 16, generator=torch.Generator().manual_seed(1))
    for part, gradient in zip(parts, whole.grad.split(16), strict=True):
        part.grad = gradient.clone()
    settings = {"learning_rate": 0.02, "weight_decay": 0.1, "dtype": torch.float32}
    Muon([{"params": [whole], "parts": 3}], **settings).step()
    Muon(parts, **settings).step()
    torch.testing.assert_close(whole, torch.cat(parts))


def test_the_polynomials_bring_every_singular_value_near_one() -> None:
    values = torch.logspace(math.log10(0.003), 0, 10_000, dtype=torch.float64)
    for a, b, c in POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.75
    assert values.max() < 1.25


def test_small_singular_values_grow_to_one_in_bf16() -> None:
    u, _, vh = torch.linalg.svd(torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0)))
    values = torch.logspace(0, -2, 64)
    values /= values.norm()
    directions = orthogonal(u @ torch.diag(values) @ vh, torch.bfloat16).float()
    along = (u.mT @ directions @ vh.mT).diagonal(dim1=-2, dim2=-1)
    assert along[..., values > 0.004].min() > 0.6
    assert along.max() < 1.3


def test_in_fp32_the_direction_has_singular_values_near_one_and_the_gradients_own_axes() -> None:
    batch = torch.randn(3, 48, 16, generator=torch.Generator().manual_seed(0))
    directions = orthogonal(batch, torch.float32)
    assert directions.dtype == torch.float32
    values = torch.linalg.svdvals(directions)
    assert values.min() > 0.6
    assert values.max() < 1.3
    u, _, vh = torch.linalg.svd(batch, full_matrices=False)
    turned = u.mT @ directions @ vh.mT
    off_diagonal = turned - torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(off_diagonal, torch.zeros_like(off_diagonal), atol=1e-4, rtol=0)


def test_matrices_without_gradients_and_zero_gradients_do_no_harm() -> None:
    parameters = matrices()
    parameters[1].grad = torch.zeros(16, 16)
    before = [parameter.detach().clone() for parameter in parameters]
    Muon(parameters, learning_rate=0.02, weight_decay=0.0, dtype=torch.float32).step()
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_and_momenta_stay_fp32(dtype: torch.dtype) -> None:
    parameters = matrices()
    muon = Muon(parameters, learning_rate=0.02, weight_decay=0.1, dtype=dtype)
    give_gradients(parameters, 0)
    muon.step()
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert {state["momentum_buffer"].dtype for state in muon.state.values()} == {torch.float32}

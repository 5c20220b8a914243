"""What a model does with a text, in numbers."""

import math

import pytest
import torch
from conftest import TEXT, Tiny
from torch import Tensor

from config.schema import ModelConfig
from engine.inspection import MAX_NUMBERS, inspect, num_recorded, windows
from engine.loading import TrainedModel, load_model
from model import MultiHeadAttention

ARCHITECTURES = ("gpt2", "qwen3")


def trained(tiny: Tiny, *overrides: str, name: str = "tiny") -> TrainedModel:
    return load_model(tiny.run(*overrides, name=name).path, device="cpu", precision="fp32")


def ids_of(model: TrainedModel, length: int) -> list[int]:
    return model.tokenizer.encode(TEXT[:length]).tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_it_expects_is_what_the_model_gives(tiny: Tiny, architecture: str) -> None:
    model = trained(tiny, f"model.architecture={architecture}")
    ids = ids_of(model, 8)
    seen = inspect(model, ids)
    with torch.no_grad():
        expected = torch.softmax(model.model(torch.tensor([ids]))[0], dim=-1)  # (T, V)
    given = expected[torch.arange(7), torch.tensor(ids[1:])]
    assert math.isnan(seen.surprises[0].item())
    torch.testing.assert_close(seen.surprises[1:], -torch.log2(given), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen.probabilities, expected.sort(descending=True).values[:, :10], rtol=0, atol=1e-6)
    for position, row in enumerate(expected):
        chosen = seen.likeliest[position]
        torch.testing.assert_close(row[chosen], seen.probabilities[position], rtol=0, atol=1e-6)
        assert len({*chosen.tolist()}) == 10
    assert seen.ranks[0] == 0
    assert seen.ranks[1:].tolist() == [
        1 + int((row > row[target]).sum()) for row, target in zip(expected, ids[1:], strict=False)
    ]


def test_a_vocabulary_of_less_than_ten_is_shown_whole(tiny: Tiny) -> None:
    text = tiny.folder / "ab.txt"
    text.write_text("abba" * 200, encoding="utf-8")
    model = trained(tiny, f"data.source={text}")
    seen = inspect(model, model.tokenizer.encode("ab").tolist())
    assert seen.likeliest.shape == (2, 3)
    torch.testing.assert_close(seen.probabilities.sum(-1), torch.ones(2))


@pytest.mark.parametrize("length", [1, 2, 8, 9, 12, 13, 30])
def test_behind_the_first_window_each_token_is_read_with_half_a_window_before_it(tiny: Tiny, length: int) -> None:
    model = trained(tiny)
    ids = ids_of(model, length)
    seen = inspect(model, ids)
    for position in range(1, length):
        # All starts that the promise allows; the number must be that of one of them.
        starts = [0] if position < 8 else range(max(0, position - 8), max(0, position - 4) + 1)
        with torch.no_grad():
            allowed = [
                -torch.log2(torch.softmax(model.model(torch.tensor([ids[start:position]]))[0, -1], -1))[ids[position]]
                for start in starts
            ]
        assert min(abs(seen.surprises[position] - each) for each in allowed) < 1e-4


@pytest.mark.parametrize("context_length", [1, 2, 5, 8])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 9, 40])
def test_every_position_is_new_in_one_window(num_tokens: int, context_length: int) -> None:
    read: list[int] = []
    for window, new in windows(num_tokens, context_length):
        assert window.stop - window.start == min(num_tokens, context_length)
        assert window.start <= new.start < new.stop == window.stop
        assert window.start == 0 or new.start - window.start >= context_length // 2
        read += range(new.start, new.stop)
    assert read == [*range(num_tokens)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_weights_are_those_that_make_the_model_what_it_is(tiny: Tiny, architecture: str) -> None:
    """Weights times values is, to rounding, what the output projection of each block is given."""
    model = trained(tiny, f"model.architecture={architecture}")
    ids = ids_of(model, 8)
    projected: list[Tensor] = []
    for block in model.model.blocks:
        assert isinstance(block.attention, MultiHeadAttention)
        block.attention.output.register_forward_pre_hook(lambda module, inputs: projected.append(inputs[0][0]))
    attention = inspect(model, ids).attention
    assert attention.weights.shape == (2, 2, 8, 8)
    assert attention.q.shape == attention.k.shape == attention.v.shape == (2, 2, 8, 8)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(2, 2, 8))
    assert attention.weights.triu(1).abs().max() == 0
    scores = attention.q @ attention.k.transpose(-1, -2) / math.sqrt(8)
    future = torch.full((8, 8), -math.inf).triu(1)
    torch.testing.assert_close(torch.softmax(scores + future, -1), attention.weights, rtol=0, atol=1e-5)
    for layer in range(2):
        mixed = (attention.weights[layer] @ attention.v[layer]).transpose(0, 1).flatten(1)
        torch.testing.assert_close(mixed, projected[layer], rtol=0, atol=1e-5)


def test_only_the_first_window_is_recorded(tiny: Tiny) -> None:
    model = trained(tiny)
    short, long = inspect(model, ids_of(model, 8)).attention, inspect(model, ids_of(model, 30)).attention
    assert torch.equal(short.weights, long.weights)


def test_the_model_is_left_as_it_was(tiny: Tiny) -> None:
    model = trained(tiny)
    idx = torch.tensor([ids_of(model, 8)])
    with torch.no_grad():
        before = model.model(idx)
        inspect(model, ids_of(model, 8))
        assert torch.equal(model.model(idx), before)
    assert not any(module._forward_pre_hooks for module in model.model.modules())


@pytest.mark.parametrize(
    "shape", [{"d_model": 768, "num_heads": 12, "num_layers": 12}, {"d_model": 1600, "num_heads": 25, "num_layers": 48}]
)
def test_of_a_large_model_so_many_positions_are_recorded_as_fit(shape: dict[str, int]) -> None:
    config = ModelConfig(context_length=1024, **shape)

    def numbers(positions: int) -> float:
        maps, vectors = config.num_layers * config.num_heads, 3 * config.num_layers * config.d_model
        return maps * positions**2 / 2 + vectors * positions

    fitting = num_recorded(config, 5000)
    assert numbers(fitting) <= MAX_NUMBERS < numbers(fitting + 1)
    assert num_recorded(config, 3) == 3


def test_one_position_is_recorded_however_large_the_model() -> None:
    assert num_recorded(ModelConfig(d_model=65536, num_heads=64, num_layers=64), 100) == 1


def test_a_small_window_is_recorded_whole() -> None:
    assert num_recorded(ModelConfig(context_length=64, d_model=32, num_heads=2, num_layers=2), 100) == 64

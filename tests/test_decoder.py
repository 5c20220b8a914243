"""A decoder gives, one position after the other, what the model gives for the whole sequence."""

import copy

import pytest
import torch

from config.schema import ModelConfig
from engine import decoder as decoder_module
from engine.decoder import Decoder
from engine.row_products import round_to_int8
from model import GPT

V = 11
BOTH = pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
TIED = pytest.mark.parametrize("tied", [True, False])
TEXT = [1, 5, 2, 9, 0, 3, 3, 7]
OTHER = [4, 4, 10, 6, 8, 2, 1, 0]


def make_model(architecture="qwen3", *, tied=False, std=0.3, **changes):
    torch.manual_seed(3)
    shape = {"context_length": 8, "d_model": 16, "num_heads": 2, "num_layers": 2, "dropout": 0.2, **changes}
    model = GPT(ModelConfig(architecture=architecture, tie_embeddings=tied, **shape), V).eval()
    for parameter in model.parameters():  # far from uniform, and every norm and bias has its part
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=std)
    return model


@torch.no_grad()
def whole(model, text):
    """The logits at every position of a text."""
    return model(torch.tensor([text]))[0].float()  # (T, V)


def decode(decoder, texts):
    """The logits of each row, whose texts are given token by token: rows of ids → (R, T, V)."""
    return torch.stack([decoder.decode(torch.tensor(column)) for column in zip(*texts, strict=True)], dim=1)


def check(decoder, beginnings, ends, reference=whole, atol=1e-5):
    """Rows that have read the beginnings and go on with the ends, against the whole of both."""
    got = decode(decoder, ends)
    for logits, beginning, end in zip(got, beginnings, ends, strict=True):
        expected = reference(decoder.model, [*beginning, *end])[-len(end) :]
        torch.testing.assert_close(logits, expected, rtol=0, atol=atol * max(1.0, float(expected.abs().max())))


@pytest.fixture
def passes():
    """A function that notes the shape of everything that passes through a whole model."""

    def watch(model):
        shapes = []
        model.final_norm.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[:2])))
        return shapes

    return watch


@BOTH
@TIED
@pytest.mark.parametrize("length", range(8))
def test_from_any_prefill_on_the_logits_are_those_of_the_whole_sequence(architecture, tied, length):
    model = make_model(architecture, tied=tied)
    decoder = Decoder(model, 1, 8)
    decoder.prefill({0: TEXT[:length]})
    got = decode(decoder, [TEXT[length:]])[0]
    torch.testing.assert_close(got, whole(model, TEXT)[length:], rtol=0, atol=1e-5)


@BOTH
@TIED
def test_rows_of_different_lengths_do_not_see_each_other(architecture, tied):
    decoder = Decoder(make_model(architecture, tied=tied), 4, 8)
    beginnings = [TEXT[:3], [], OTHER[:5], [7]]
    decoder.prefill(dict(enumerate(beginnings)))
    assert decoder.lengths == [3, 0, 5, 1]
    check(decoder, beginnings, [TEXT[3:6], OTHER[:3], OTHER[5:], TEXT[:3]])
    assert decoder.lengths == [6, 3, 8, 4]


@BOTH
@TIED
def test_a_full_row_begins_anew_while_the_others_go_on(architecture, tied):
    decoder = Decoder(make_model(architecture, tied=tied), 3, 8)
    beginnings = [TEXT[:5], OTHER[:2], TEXT[:4]]
    decoder.prefill(dict(enumerate(beginnings)))
    ends = [TEXT[5:], OTHER[2:5], OTHER[:3]]
    check(decoder, beginnings, ends)
    decoder.prefill({0: TEXT[-3:]})  # shorter than what the row held
    check(decoder, [TEXT[-3:], OTHER[:5], [*TEXT[:4], *OTHER[:3]]], [[6], [5], [9]])
    decoder.prefill({0: [], 2: TEXT[1:8]})
    check(decoder, [[], [*OTHER[:5], 5], TEXT[1:8]], [[2], [1], [0]])


@BOTH
def test_all_rows_that_are_full_begin_anew(architecture):
    decoder = Decoder(make_model(architecture), 2, 8)
    check(decoder, [[], []], [TEXT, OTHER])
    decoder.prefill({0: TEXT[-3:], 1: OTHER[-3:]})
    check(decoder, [TEXT[-3:], OTHER[-3:]], [OTHER[:5], TEXT[:5]])


@BOTH
def test_a_window_of_one_token_is_a_text_of_its_own(architecture):
    decoder = Decoder(make_model(architecture, context_length=1), 2, 8)
    assert decoder.capacity == 1
    for pair in ([[3], [7]], [[0], [3]]):
        decoder.prefill({0: [], 1: []})
        check(decoder, [[], []], pair)


def test_rows_that_begin_alike_are_read_once(passes):
    model = make_model()
    shapes = passes(model)
    decoder = Decoder(model, 5, 8)
    decoder.prefill(dict.fromkeys(range(5), TEXT[:4]))
    assert shapes == [(1, 4)]
    decoder.prefill({3: TEXT[:4]})  # kept in mind
    assert shapes == [(1, 4)]
    decoder.prefill({3: OTHER[:4]})
    assert shapes == [(1, 4), (1, 4)]
    check(decoder, [TEXT[:4]] * 3 + [OTHER[:4], TEXT[:4]], [[1, 2], [3, 4], [1, 2], [5, 6], [9, 0]])


def test_rows_of_one_length_are_read_together_and_none_for_an_empty_text(passes):
    model = make_model()
    shapes = passes(model)
    decoder = Decoder(model, 7, 8)
    beginnings = [TEXT[:4], OTHER[:4], TEXT[:4], TEXT[:2], [], OTHER[:2], TEXT[:5]]
    decoder.prefill(dict(enumerate(beginnings)))
    assert sorted(shapes) == [(1, 5), (2, 2), (2, 4)]
    check(decoder, beginnings, [[token, token] for token in range(7)])
    shapes.clear()
    decoder.prefill({})
    decoder.prefill({2: [], 4: []})
    assert shapes == []


def test_many_beginnings_are_read_in_several_passes(passes, monkeypatch):
    monkeypatch.setattr(decoder_module, "PREFILL_TOKENS", 8)
    model = make_model()
    shapes = passes(model)
    decoder = Decoder(model, 5, 8)
    beginnings = [[token, 2, 3] for token in range(5)]
    decoder.prefill(dict(enumerate(beginnings)))
    assert shapes == [(2, 3), (2, 3), (1, 3)]
    check(decoder, beginnings, [[4, 5]] * 5)
    shapes.clear()
    monkeypatch.setattr(decoder_module, "PREFILL_TOKENS", 1)
    decoder.prefill(dict(enumerate(beginnings)))
    assert shapes == [(1, 3)] * 5


@BOTH
def test_rows_that_are_kept_go_on_in_their_new_order(architecture):
    decoder = Decoder(make_model(architecture), 4, 8)
    beginnings = [TEXT[:3], [], OTHER[:5], [7]]
    decoder.prefill(dict(enumerate(beginnings)))
    decoder.keep([2, 0, 3])
    assert decoder.lengths == [5, 3, 1]
    check(decoder, [OTHER[:5], TEXT[:3], [7]], [[1, 2], [3, 4], [5, 6]])
    decoder.keep([1])
    check(decoder, [[*TEXT[:3], 3, 4]], [[9, 8, 7]])
    decoder.keep([])
    assert decoder.lengths == []


@BOTH
def test_a_row_has_room_for_its_capacity_and_no_more(architecture):
    decoder = Decoder(make_model(architecture), 2, 5)
    assert {layer.cache.shape[3] for layer in decoder.layers} == {5}
    decoder.prefill({0: TEXT[:3], 1: OTHER[:1]})
    check(decoder, [TEXT[:3], OTHER[:1]], [[1, 2], [3, 4]])
    with pytest.raises(AssertionError, match="full"):
        decoder.decode(torch.tensor([0, 0]))
    assert decoder.lengths == [5, 3]
    decoder.keep([1])
    check(decoder, [[OTHER[0], 3, 4]], [[5, 6]])


@BOTH
def test_positions_end_where_the_window_does(architecture):
    decoder = Decoder(make_model(architecture), 1, 100)
    assert decoder.capacity == 8
    check(decoder, [[]], [TEXT])
    with pytest.raises(AssertionError, match="full"):
        decoder.decode(torch.tensor([0]))


@torch.no_grad()
def under_autocast(model, text):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(torch.tensor([text]))[0].float()


@BOTH
@TIED
def test_in_bf16_it_is_the_model_under_autocast(architecture, tied):
    model = make_model(architecture, tied=tied)
    decoder = Decoder(model, 3, 8, dtype=torch.bfloat16)
    beginnings = [TEXT[:3], [], OTHER[:5]]
    decoder.prefill(dict(enumerate(beginnings)))
    ends = [TEXT[3:6], OTHER[:3], OTHER[5:]]
    check(decoder, beginnings, ends, under_autocast, atol=2e-2)
    decoder.prefill({0: TEXT[:3]})
    decoder.keep([0])
    bf16 = decoder.decode(torch.tensor([1]))
    assert bf16.dtype == torch.float32
    assert not torch.allclose(bf16, whole(model, [*TEXT[:3], 1])[-1:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_beginning_is_read_in_the_precision_that_the_rest_is_written_in(dtype):
    model, dtypes = make_model(), set()
    model.blocks[0].attention.qkv.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    Decoder(model, 1, 8, dtype=dtype).prefill({0: TEXT[:3]})
    assert dtypes == {dtype}


@BOTH
@TIED
def test_in_int8_it_is_the_model_that_8_bits_leave(architecture, tied):
    model = make_model(architecture, tied=tied)
    round_to_int8(model)
    decoder = Decoder(model, 3, 8, int8=True)
    beginnings = [TEXT[:3], [], OTHER[:5]]
    decoder.prefill(dict(enumerate(beginnings)))
    check(decoder, beginnings, [TEXT[3:6], OTHER[:3], OTHER[5:]], atol=2e-2)


@BOTH
def test_int8_rounds_weights_that_were_not_rounded_before(architecture):
    model = make_model(architecture)
    rounded = copy.deepcopy(model)
    round_to_int8(rounded)
    texts = [TEXT, OTHER]
    assert torch.equal(decode(Decoder(model, 2, 8, int8=True), texts), decode(Decoder(rounded, 2, 8, int8=True), texts))


@BOTH
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("d_ff", [50, 7])
def test_widths_that_suit_no_kernel_are_computed_all_the_same(architecture, kind, d_ff):
    model = make_model(architecture, d_model=24, num_heads=3, d_ff=d_ff)
    if kind == "int8":
        round_to_int8(model)
    decoder = Decoder(model, 2, 8, dtype=torch.bfloat16 if kind == "bf16" else torch.float32, int8=kind == "int8")
    decoder.prefill({0: TEXT[:3], 1: OTHER[:1]})
    reference = under_autocast if kind == "bf16" else whole
    atol = 1e-5 if kind == "fp32" else 2e-2
    check(decoder, [TEXT[:3], OTHER[:1]], [TEXT[3:8], OTHER[1:6]], reference, atol=atol)


@BOTH
@pytest.mark.parametrize("training", [True, False])
def test_the_mode_the_weights_and_the_gradients_stay_and_decoding_drops_nothing(architecture, training):
    model = make_model(architecture)
    expected, before = whole(model, TEXT), copy.deepcopy(model.state_dict())
    model.train(training)
    state = torch.get_rng_state()
    decoder = Decoder(model, 1, 8)
    got = decode(decoder, [TEXT])[0]
    assert torch.equal(torch.get_rng_state(), state)
    decoder.prefill({0: TEXT[:3]})
    decoder.decode(torch.tensor([1]))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert {module.training for module in model.modules()} == {training}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model(torch.tensor([TEXT])).sum().backward()  # as before

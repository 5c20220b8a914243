"""Models of ours and of transformers: each in the other's hands gives the same logits, or says why it cannot."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from config.schema import ModelConfig
from errors import CheckpointError
from interop.huggingface import (
    config_fields,
    from_huggingface,
    is_transposed,
    model_config,
    their_names,
    to_huggingface,
)
from model import GPT

VOCAB_SIZE = 11
IDX = torch.randint(VOCAB_SIZE, (3, 8), generator=torch.Generator().manual_seed(1))
ARCHITECTURES = ("gpt2", "qwen3")
every_model = pytest.mark.parametrize("architecture", ARCHITECTURES)
tied_or_not = pytest.mark.parametrize("tie_embeddings", [True, False])
# With d_ff = d_model every matrix of a block but qkv is square: one that lies on its side loads all the same.
every_width = pytest.mark.parametrize("d_ff", [16, None])


def tiny(architecture: str, **changes: object) -> ModelConfig:
    settings = {"context_length": 8, "d_model": 16, "num_heads": 2, "num_layers": 2, **changes}
    return ModelConfig(architecture=architecture, **settings)


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Random values everywhere, so that norms, biases and every layout take part in a comparison."""
    for parameter in module.parameters():
        parameter.normal_(std=0.3).add_(0.1)


def ours(config: ModelConfig) -> GPT:
    torch.manual_seed(0)
    model = GPT(config, VOCAB_SIZE).eval()
    randomise(model)
    return model


def theirs(config: ModelConfig) -> Any:
    torch.manual_seed(0)
    fields = config_fields(config, VOCAB_SIZE)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields)).eval()
    randomise(model)
    return model


def fields_of(architecture: str, **changes: object) -> dict[str, Any]:
    return config_fields(tiny(architecture), VOCAB_SIZE) | changes


@every_model
@tied_or_not
@every_width
def test_a_model_of_ours_has_the_same_logits_there(architecture: str, tie_embeddings: bool, d_ff: int | None) -> None:
    config = tiny(architecture, tie_embeddings=tie_embeddings, d_ff=d_ff)
    model, other = ours(config), theirs(config)
    missing, surplus = other.load_state_dict(to_huggingface(config, model.state_dict()), strict=False)
    assert (missing, surplus) == (["lm_head.weight"] if tie_embeddings else [], [])
    other.tie_weights()
    torch.testing.assert_close(other(IDX).logits, model(IDX), atol=1e-5, rtol=1e-5)


@every_model
@tied_or_not
@every_width
def test_a_model_of_theirs_has_the_same_logits_here(architecture: str, tie_embeddings: bool, d_ff: int | None) -> None:
    other = theirs(tiny(architecture, tie_embeddings=tie_embeddings, d_ff=d_ff))
    config, vocab_size = model_config(other.config.to_dict(), "config.json")
    model = GPT(config, vocab_size).eval()
    model.load_state_dict(from_huggingface(config, vocab_size, other.state_dict(), "weights"))
    torch.testing.assert_close(model(IDX), other(IDX).logits, atol=1e-5, rtol=1e-5)


@every_model
@tied_or_not
def test_there_and_back_no_bit_changes(architecture: str, tie_embeddings: bool) -> None:
    config = tiny(architecture, tie_embeddings=tie_embeddings, d_ff=20)
    weights = ours(config).state_dict()
    assert model_config(config_fields(config, VOCAB_SIZE), "x") == (config, VOCAB_SIZE)
    back = from_huggingface(config, VOCAB_SIZE, to_huggingface(config, weights), "x")
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


@every_model
def test_every_weight_of_theirs_has_its_place_and_no_two_share_one(architecture: str) -> None:
    config = tiny(architecture, tie_embeddings=False)
    names = [name for names in their_names(config).values() for name in names]
    assert sorted(names) == sorted(theirs(config).state_dict())
    assert {*their_names(config)} == {*GPT(config, VOCAB_SIZE).state_dict()}
    assert any(is_transposed(config, name) for name in their_names(config)) is (architecture == "gpt2")


def test_older_files_of_gpt2_hold_masks_and_have_no_prefix() -> None:
    config = tiny("gpt2")
    weights = ours(config).state_dict()
    older = {name.removeprefix("transformer."): weight for name, weight in to_huggingface(config, weights).items()}
    older |= {"h.0.attn.bias": torch.ones(1, 1, 8, 8).tril(), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    older["lm_head.weight"] = older["wte.weight"].clone()
    back = from_huggingface(config, VOCAB_SIZE, older, "x")
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_bits_become_fp32(dtype: torch.dtype) -> None:
    config = tiny("qwen3")
    halves = {name: weight.to(dtype) for name, weight in to_huggingface(config, ours(config).state_dict()).items()}
    back = from_huggingface(config, VOCAB_SIZE, halves, "x")
    assert {weight.dtype for weight in back.values()} == {torch.float32}
    assert torch.equal(back["token_embedding.weight"], halves["model.embed_tokens.weight"].float())


def refused(config: ModelConfig, weights: dict[str, Tensor]) -> str:
    with pytest.raises(CheckpointError, match=r"^weights: ") as error:
        from_huggingface(config, VOCAB_SIZE, weights, "weights")
    return str(error.value)


def test_a_weight_that_is_missing_left_over_or_of_another_shape_is_named() -> None:
    config = tiny("gpt2")
    whole = to_huggingface(config, ours(config).state_dict())
    key = "transformer.h.1.attn.c_attn.weight"
    assert f"there is no weight {key!r}" in refused(config, {n: w for n, w in whole.items() if n != key})
    assert f"{key!r} is (48, 16)" in refused(config, whole | {key: whole[key].T})
    assert "config.json asks for (16, 48) of floats" in refused(config, whole | {key: whole[key].T})
    assert "torch.int64" in refused(config, whole | {key: whole[key].long()})
    assert "'transformer.h.2.ln_1.bias'" in refused(config, whole | {"transformer.h.2.ln_1.bias": torch.ones(16)})
    assert "'transformer.wte.weight' stands there twice" in refused(config, whole | {"wte.weight": torch.ones(1)})
    assert "tie_word_embeddings" in refused(config, whole | {"lm_head.weight": torch.ones(VOCAB_SIZE, 16)})


@every_model
def test_a_model_far_larger_than_its_weights_is_refused_before_it_is_built(architecture: str) -> None:
    weights = to_huggingface(tiny(architecture), ours(tiny(architecture)).state_dict())
    for changes, words in (
        ({"num_layers": 10**9}, "holds 2 layers, but config.json asks for 1000000000"),
        ({"d_model": 10**9}, "no weight is wider than .*, but config.json asks for a width of"),
        ({"d_ff": 10**9}, "asks for a width of 1000000000"),
    ):
        with pytest.raises(CheckpointError, match=rf"^weights: .*{words}"):
            from_huggingface(tiny(architecture, **changes), VOCAB_SIZE, weights, "weights")
    with pytest.raises(CheckpointError, match="asks for a width of 1000000000"):
        from_huggingface(tiny(architecture), 10**9, weights, "weights")


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("gpt2", {"model_type": "llama"}, "model_type is 'llama', but only gpt2 and qwen3"),
        ("gpt2", {"model_type": []}, r"model_type is \[\], but only gpt2 and qwen3"),
        ("gpt2", {"activation_function": "relu"}, "activation_function is 'relu', not 'gelu_new'"),
        ("gpt2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, not 1e-05"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False, not True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, not False"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True, not False"),
        ("gpt2", {"n_head": 3}, "not the settings of a model: .*model.d_model"),
        ("gpt2", {"n_layer": "2"}, "not the settings of a model: num_layers"),
        ("gpt2", {"vocab_size": 0}, "vocab_size is 0"),
        ("gpt2", {"alibi": True}, "alibi is True, a setting that is not known here"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"),
        ("qwen3", {"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, not 1e-06"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True, not False"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window is True, not False"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ("qwen3", {"layer_types": 5}, "layer_types is 5, not a list"),
        ("qwen3", {"is_causal": False}, "is_causal is False, not True"),
        ("qwen3", {"rope_theta": 1e6}, "rope_theta is 1000000.0, not 10000.0"),
        ("qwen3", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling is .*yarn"),
        ("qwen3", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters.rope_theta is 1000000.0, not 10000.0"),
        ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 2}}, "rope_type is 'linear'.*factor is 2"),
        ("qwen3", {"num_key_value_heads": 1}, r"num_key_value_heads is 1, not num_attention_heads \(2\)"),
        ("qwen3", {"head_dim": 16}, r"head_dim is 16, not hidden_size / num_attention_heads \(16 / 2\)"),
        ("qwen3", {"quantization_config": {"bits": 4}}, "quantization_config is .*not known here"),
    ],
)
def test_a_setting_that_ours_cannot_express_is_named_with_what_was_found(
    architecture: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"^config.json: .*{words}") as error:
        model_config(fields_of(architecture, **changes), "config.json")
    assert len(str(error.value).splitlines()) == 1


@every_model
def test_settings_that_are_not_given_are_those_of_transformers(architecture: str) -> None:
    given = {name: value for name, value in fields_of(architecture).items() if name in ("model_type", "vocab_size")}
    whole = transformers.AutoConfig.for_model(**given).to_dict()
    if architecture == "qwen3":  # whose heads are wider than ours can be
        given |= {"head_dim": 4096 // 32}
        whole |= {"head_dim": 4096 // 32}
    assert model_config(given, "x") == model_config(whole, "x")


def test_settings_without_effect_and_those_that_are_off_are_no_obstacle() -> None:
    fields = fields_of("gpt2", n_inner=None, attn_pdrop=0.1, task_specific_params={"a": 1}, something_new=False)
    assert model_config(fields, "x")[0] == tiny("gpt2")


def test_settings_of_published_folders_that_change_no_logits_are_accepted() -> None:
    published = {"_num_labels": 1, "output_past": True, "num_beams": 4, "temperature": 0.7, "finetuning_task": "lm"}
    assert model_config(fields_of("gpt2", **published), "x") == model_config(fields_of("gpt2"), "x")

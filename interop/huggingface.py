"""A model of ours in the names, layouts and settings of Hugging Face transformers, and theirs in ours.

`gpt2` is GPT2LMHeadModel there, `qwen3` is Qwen3ForCausalLM. Vocabularies and files are not this file's concern.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from config.schema import ModelConfig
from errors import CheckpointError
from model import GPT, ROTARY_THETA

CLASSES = {"gpt2": "GPT2LMHeadModel", "qwen3": "Qwen3ForCausalLM"}
Names = dict[str, tuple[str, ...]]

# Their names of what is in a block; where there are several, ours is all of them, one below the other.
_BLOCK_NAMES: dict[str, Names] = {
    "gpt2": {
        "norm_1": ("ln_1",),
        "attention.qkv": ("attn.c_attn",),
        "attention.output": ("attn.c_proj",),
        "norm_2": ("ln_2",),
        "feed_forward.up": ("mlp.c_fc",),
        "feed_forward.down": ("mlp.c_proj",),
    },
    "qwen3": {
        "norm_1": ("input_layernorm",),
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.q_norm": ("self_attn.q_norm",),
        "attention.k_norm": ("self_attn.k_norm",),
        "attention.output": ("self_attn.o_proj",),
        "norm_2": ("post_attention_layernorm",),
        "feed_forward.gate": ("mlp.gate_proj",),
        "feed_forward.up": ("mlp.up_proj",),
        "feed_forward.down": ("mlp.down_proj",),
    },
}
_OTHER_NAMES = {
    "gpt2": {"token_embedding": "wte", "position_embedding": "wpe", "final_norm": "ln_f"},
    "qwen3": {"token_embedding": "embed_tokens", "final_norm": "norm"},
}
_PREFIXES = {"gpt2": ("transformer.", "h"), "qwen3": ("model.", "layers")}

# Their settings for which our architectures have one value: what transformers takes where it is not given, and
# all that mean the same as ours.
_FIXED: dict[str, dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "gpt2": {
        "activation_function": ("gelu_new", ("gelu_new", "gelu_pytorch_tanh")),
        "layer_norm_epsilon": (1e-5, (1e-5,)),
        "scale_attn_weights": (True, (True,)),
        "scale_attn_by_inverse_layer_idx": (False, (False,)),
        "reorder_and_upcast_attn": (False, (False,)),
        "add_cross_attention": (False, (False,)),
        "is_causal": (True, (True,)),
    },
    "qwen3": {
        "hidden_act": ("silu", ("silu", "swish")),
        "rms_norm_eps": (1e-6, (1e-6,)),
        "attention_bias": (False, (False,)),
        "use_sliding_window": (False, (False,)),
        "rope_theta": (ROTARY_THETA, (ROTARY_THETA,)),
        "rope_scaling": (None, (None,)),
        "is_causal": (True, (True,)),
    },
}
# Their settings that decide nothing about the logits: names, what training drops, how generation ends, …
_WITHOUT_EFFECT = {
    *("model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "n_ctx", "max_window_layers"),
    *("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "sliding_window", "task_specific_params"),
    *("keys_to_ignore_at_inference", "_attn_implementation", "return_dict", "is_encoder_decoder", "id2label"),
    *("label2id", "chunk_size_feed_forward", "problem_type", "predict_special_tokens", "gradient_checkpointing"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("tokenizer_class", "attn_implementation", "attn_implementation_internal", "_attn_implementation_internal"),
    OURS := "tiny_gpt",  # what an export of ours notes there
}
_SHAPES = {
    "gpt2": ("vocab_size", "n_positions", "n_embd", "n_head", "n_layer", "n_inner", "tie_word_embeddings"),
    "qwen3": (
        *("vocab_size", "max_position_embeddings", "hidden_size", "num_attention_heads", "num_hidden_layers"),
        *("intermediate_size", "tie_word_embeddings", "num_key_value_heads", "head_dim", "rope_parameters"),
        "layer_types",
    ),
}


def config_fields(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """The settings of the model as config.json has them, without those of its vocabulary."""
    shared = {
        "architectures": [CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if config.architecture == "gpt2":
        dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout)
        return shared | {
            "n_positions": config.context_length,
            "n_embd": config.d_model,
            "n_layer": config.num_layers,
            "n_head": config.num_heads,
            "n_inner": config.feed_forward_width,
            **{name: default for name, (default, _) in _FIXED["gpt2"].items()},
            **dropout,
        }
    return shared | {
        "max_position_embeddings": config.context_length,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feed_forward_width,
        "attention_dropout": 0.0,
        **{name: default for name, (default, _) in _FIXED["qwen3"].items()},
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_THETA},
    }


def model_config(fields: Mapping[str, Any], where: str) -> tuple[ModelConfig, int]:
    """The settings and the vocabulary's size of a config.json, called `where`.

    Raises `CheckpointError` for an architecture or a setting that ours cannot express.
    """
    architecture = fields.get("model_type")
    if architecture not in _FIXED:
        raise CheckpointError(
            f"{where}: model_type is {architecture!r:.40}, but only gpt2 and qwen3 can be opened here"
        )
    faults = _unsupported(fields, architecture)
    if faults:
        raise CheckpointError(
            f"{where}: {'; '.join(faults)}; the {architecture} of this program computes otherwise, "
            "so this model cannot be opened here"
        )
    if architecture == "gpt2":
        names = {"n_positions": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None}
        ties = True
    else:
        names = {"max_position_embeddings": 32768, "hidden_size": 4096, "num_attention_heads": 32}
        names |= {"num_hidden_layers": 32, "intermediate_size": 22016}
        ties = False
    context_length, d_model, num_heads, num_layers, d_ff = (fields.get(name, names[name]) for name in names)
    try:
        config = ModelConfig(
            architecture=architecture,
            context_length=context_length,
            d_model=d_model,
            num_heads=num_heads,
            num_layers=num_layers,
            d_ff=d_ff,
            tie_embeddings=fields.get("tie_word_embeddings", ties),
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = ".".join(map(str, first["loc"])) or "settings"
        raise CheckpointError(f"{where}: not the settings of a model: {fault}: {first['msg']}") from error
    vocab_size = fields.get("vocab_size", 50257 if architecture == "gpt2" else 151936)
    if type(vocab_size) is not int or vocab_size < 2:
        raise CheckpointError(f"{where}: vocab_size is {vocab_size!r:.40}, not a number of tokens")
    return config, vocab_size


def _unsupported(fields: Mapping[str, Any], architecture: str) -> list[str]:
    """What each setting that our architecture cannot express is, and what it would have to be."""
    faults = []
    for name, (default, allowed) in _FIXED[architecture].items():
        found = fields.get(name, default)
        if found not in allowed or isinstance(found, bool) != isinstance(default, bool):
            faults.append(f"{name} is {found!r:.60}, not {default!r}")
    if architecture == "qwen3":
        faults += _unsupported_in_qwen3(fields)
    known = {*_FIXED[architecture], *_SHAPES[architecture], *_WITHOUT_EFFECT}
    for name, found in fields.items():
        if name not in known and found not in (None, False, 0, "", [], {}):
            faults.append(f"{name} is {found!r:.60}, a setting that is not known here")
    return faults


def _unsupported_in_qwen3(fields: Mapping[str, Any]) -> list[str]:
    faults = []
    num_heads, d_model = fields.get("num_attention_heads", 32), fields.get("hidden_size", 4096)
    num_groups, head_size = fields.get("num_key_value_heads", 32), fields.get("head_dim", 128)
    if num_groups not in (None, num_heads):
        faults.append(f"num_key_value_heads is {num_groups!r:.20}, not num_attention_heads ({num_heads!r:.20})")
    if isinstance(num_heads, int) and isinstance(head_size, int) and head_size * num_heads != d_model:
        faults.append(f"head_dim is {head_size}, not hidden_size / num_attention_heads ({d_model!r:.20} / {num_heads})")
    rope = fields.get("rope_parameters") or {}
    usual = {"rope_type": "default", "type": "default", "rope_theta": ROTARY_THETA}
    for name, found in rope.items() if isinstance(rope, dict) else [("", rope)]:
        if found != usual.get(name):
            faults.append(f"rope_parameters.{name} is {found!r:.40}, not {usual.get(name)!r}")
    layers = fields.get("layer_types") or []
    if not isinstance(layers, list):
        return [*faults, f"layer_types is {layers!r:.40}, not a list"]
    faults += [f"layer_types has {kind!r:.40}, not 'full_attention'" for kind in layers if kind != "full_attention"][:1]
    return faults


def their_names(config: ModelConfig) -> Names:
    """For each weight of ours, in the order of the model, its name or names there; a tied head has none."""
    architecture = config.architecture
    prefix, blocks = _PREFIXES[architecture]
    kinds = ("weight", "bias") if architecture == "gpt2" else ("weight",)
    names: Names = {}
    for ours, theirs in _OTHER_NAMES[architecture].items():
        for kind in kinds if ours == "final_norm" else ("weight",):
            names[f"{ours}.{kind}"] = (f"{prefix}{theirs}.{kind}",)
    for layer in range(config.num_layers):
        for ours, parts in _BLOCK_NAMES[architecture].items():
            for kind in kinds:
                theirs_here = tuple(f"{prefix}{blocks}.{layer}.{part}.{kind}" for part in parts)
                names[f"blocks.{layer}.{ours}.{kind}"] = theirs_here
    if not config.tie_embeddings:
        names["lm_head.weight"] = ("lm_head.weight",)
    return names


def is_transposed(config: ModelConfig, name: str) -> bool:
    """Whether a weight of ours lies on its side there: GPT-2's layers are written as (in, out)."""
    is_matrix = "norm" not in name and name.endswith("weight")
    return config.architecture == "gpt2" and name.startswith("blocks.") and is_matrix


def to_huggingface(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under their names and in their layout; the values are the same to the bit."""
    theirs = {}
    for ours, names in their_names(config).items():
        parts = weights[ours].chunk(len(names))
        for name, part in zip(names, parts, strict=True):
            theirs[name] = (part.T if is_transposed(config, ours) else part).contiguous()
    return theirs


def from_huggingface(
    config: ModelConfig, vocab_size: int, theirs: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Their weights as ours, in fp32. Each is used exactly once.

    Raises `CheckpointError`, naming `where`, for one that is missing, left over, or of another shape.
    """
    left = _with_prefix(config, theirs, where)
    _check_size(config, vocab_size, left, where)
    with torch.device("meta"):  # shapes only
        shapes = {name: weight.shape for name, weight in GPT(config, vocab_size).state_dict().items()}
    ours = {}
    for name, names in their_names(config).items():
        rows = shapes[name][0] // len(names)
        expected = (rows, *shapes[name][1:])
        parts = [
            _take(left, part, expected[::-1] if is_transposed(config, name) else expected, where) for part in names
        ]
        ours[name] = torch.cat([part.T if is_transposed(config, name) else part for part in parts]).contiguous()
    if config.tie_embeddings:
        ours["lm_head.weight"] = ours["token_embedding.weight"]
        if not torch.equal(left.pop("lm_head.weight", ours["lm_head.weight"]).float(), ours["lm_head.weight"]):
            raise CheckpointError(
                f"{where}: lm_head.weight is not the token embedding, although config.json says tie_word_embeddings; "
                "set that to false there"
            )
    if left:
        raise CheckpointError(
            f"{where}: {len(left)} weights have no place in a {config.architecture} model of this config.json, "
            f"among them {min(left)!r:.80}; use another file"
        )
    return ours


def _with_prefix(config: ModelConfig, theirs: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The weights with the prefix that they have beside a head, without GPT-2's masks, which older files hold too."""
    prefix = _PREFIXES[config.architecture][0]
    masks = (".attn.bias", ".attn.masked_bias") if config.architecture == "gpt2" else ()
    weights: dict[str, Tensor] = {}
    for name, weight in theirs.items():
        if masks and name.endswith(masks):
            continue
        whole_name = name if name.startswith((prefix, "lm_head.")) else prefix + name
        if whole_name in weights:
            raise CheckpointError(f"{where}: weight {whole_name!r:.80} stands there twice; use another file")
        weights[whole_name] = weight
    return weights


def _check_size(config: ModelConfig, vocab_size: int, theirs: Mapping[str, Tensor], where: str) -> None:
    """Raise `CheckpointError` for settings far beyond what the weights can be of, before a model of them is built."""
    prefix, blocks = _PREFIXES[config.architecture]
    start = f"{prefix}{blocks}."
    num_layers = len({name.removeprefix(start).partition(".")[0] for name in theirs if name.startswith(start)})
    if config.num_layers > num_layers:
        raise CheckpointError(
            f"{where}: holds {num_layers} layers, but config.json asks for {config.num_layers}; use another file"
        )
    widest = max((size for weight in theirs.values() if weight.numel() for size in weight.shape), default=0)
    asked = max(vocab_size, config.d_model, config.feed_forward_width)
    if config.architecture == "gpt2":
        asked = max(asked, config.context_length)
    if asked > widest:
        raise CheckpointError(
            f"{where}: no weight is wider than {widest}, but config.json asks for a width of {asked}; use another file"
        )


def _take(left: dict[str, Tensor], name: str, shape: tuple[int, ...], where: str) -> Tensor:
    """The weight of this name, in fp32, which is then no longer left."""
    weight = left.pop(name, None)
    if weight is None:
        raise CheckpointError(
            f"{where}: there is no weight {name!r}, which this config.json asks for; use another file"
        )
    if tuple(weight.shape) != shape or not weight.is_floating_point():
        raise CheckpointError(
            f"{where}: weight {name!r} is {tuple(weight.shape)} of {weight.dtype}, "
            f"but config.json asks for {shape} of floats; use another file"
        )
    return weight.float()

"""A model of ours as a GGUF file, which llama.cpp and what is built on it (Ollama, LM Studio) run.

Needs the library `gguf`, which is optional. How other formats name things is not this file's concern.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from config.schema import ModelConfig
from data.bpe import BpeTokenizer
from data.cuts import GPT2_PATTERN, GPT4_PATTERN, LEARNT_PATTERN
from data.paths import shown_path
from data.tokenizer import END_OF_TEXT, CharTokenizer, Tokenizer
from engine.checkpoint import Checkpoint
from engine.files import replacing
from errors import UserError
from interop.huggingface_folder import MARK, check_range, generation_fields, rounded
from interop.merges import merges_of, merges_of_characters, visible_text
from model import ROTARY_THETA

MAGIC = b"GGUF"
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens, as llama.cpp numbers them
# How llama.cpp calls what cuts a text into pretokens. It cannot be told a pattern, only one of those that it has.
PRETOKENIZERS = {
    LEARNT_PATTERN: "qwen35",
    GPT2_PATTERN: "gpt-2",
    GPT4_PATTERN: "llama-bpe",
}
# Without any merge it refuses the file; this one can never happen.
_DUMMY_MERGE = (END_OF_TEXT, END_OF_TEXT)

_NAMES = {
    "token_embedding": "token_embd",
    "position_embedding": "position_embd",
    "final_norm": "output_norm",
    "lm_head": "output",
    "norm_1": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.output": "attn_output",
    "norm_2": "ffn_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as llama.cpp takes it: byte pairs, also where ours are characters or bytes."""

    tokens: list[str]
    kinds: list[int]
    merges: list[tuple[str, str]]
    pretokenizer: str
    notes: list[str] = field(default_factory=list)  # what is not the same there


def check_gguf(path: Path, *, overwrite: bool) -> None:
    """Raise `UserError` where the library is missing, or an export would replace anything but an earlier one."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--format gguf needs the library gguf: pip install gguf (requirements-optional.txt has the version)"
        ) from error
    shown = f"--out {shown_path(path)}"
    if path.is_dir():
        raise UserError(f"{shown}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{shown}: there is no folder {shown_path(path.parent)}; make it first")
    if not os.path.lexists(path):
        return
    if not is_ours(path):
        raise UserError(f"{shown}: is no GGUF file of this program, so it is not replaced; name another file")
    if not overwrite:
        raise UserError(f"{shown}: exists already; replace it (--overwrite) or name another file")


def is_ours(path: Path) -> bool:
    """Whether a file of this format stands there that this program wrote: its mark is among the first settings."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
            return head.startswith(MAGIC) and MARK.encode() in head
    except OSError:
        return False


def write_gguf(path: Path, checkpoint: Checkpoint, *, dtype: str = "f32", report: Callable[[str], None]) -> None:
    """Export the model to a file, which is there whole or not at all. `dtype`, f32 or f16, is that of the matrices.

    Reports what llama.cpp does otherwise than this program. Raises `UserError` for a tokenizer that it cannot have.
    """
    import gguf

    config = checkpoint.config.model
    vocabulary = vocabulary_of(checkpoint.tokenizer)
    tensors = tensors_of(config, rounded(checkpoint, "f32"))
    stored = {name: as_stored(name, weight, dtype) for name, weight in tensors.items()}
    check_range(stored, checkpoint)
    for note in vocabulary.notes:
        report(f"note     {note}")
    with replacing(path) as temporary:
        writer = gguf.GGUFWriter(temporary, config.architecture)
        try:
            writer.add_bool(MARK, True)
            add_settings(writer, config, dtype)
            add_vocabulary(writer, vocabulary, checkpoint)
            for name, weight in stored.items():
                writer.add_tensor(name, weight.numpy())
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def add_settings(writer: Any, config: ModelConfig, dtype: str) -> None:
    """The shape of the model."""
    writer.add_name(f"tiny {config.architecture}")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.feed_forward_width)
    writer.add_head_count(config.num_heads)
    writer.add_file_type({"f32": 0, "f16": 1}[dtype])
    if config.architecture == "gpt2":
        writer.add_layer_norm_eps(1e-5)
        return
    writer.add_head_count_kv(config.num_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_rope_freq_base(ROTARY_THETA)
    writer.add_layer_norm_rms_eps(1e-6)


def add_vocabulary(writer: Any, vocabulary: Vocabulary, checkpoint: Checkpoint) -> None:
    """The tokens, and which of them end a text: without that, llama.cpp ends it at whatever token has the id 11."""
    end_id = checkpoint.tokenizer.end_id
    writer.add_tokenizer_model("gpt2")  # its name for byte pairs
    writer.add_tokenizer_pre(vocabulary.pretokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(int(checkpoint.data["start_id"]))
    writer.add_eos_token_id(end_id)
    writer.add_eot_token_id(end_id)
    writer.add_pad_token_id(end_id)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    never = generation_fields(checkpoint).get("suppress_tokens")
    if never:
        writer.add_array("tokenizer.ggml.suppress_tokens", never)


def tensors_of(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under llama.cpp's names; qwen3 has queries, keys and values apart, a tied head is left out."""
    tensors = {}
    for name, weight in weights.items():
        module, _, kind = name.rpartition(".")
        prefix = ""
        if module.startswith("blocks."):
            _, layer, module = module.split(".", 2)
            prefix = f"blk.{layer}."
        if module == "lm_head" and config.tie_embeddings:
            continue
        if module == "attention.qkv" and config.architecture == "qwen3":
            for letter, part in zip("qkv", weight.chunk(3), strict=True):
                tensors[f"{prefix}attn_{letter}.{kind}"] = part
        else:
            tensors[f"{prefix}{_NAMES[module]}.{kind}"] = weight
    return tensors


def as_stored(name: str, weight: Tensor, dtype: str) -> Tensor:
    """Matrices in `dtype`; what is added and not multiplied stays f32, which llama.cpp expects."""
    is_matrix = weight.dim() == 2 and name != "position_embd.weight"
    return weight.to(torch.float16 if dtype == "f16" and is_matrix else torch.float32).contiguous()


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The tokenizer as byte pairs of llama.cpp. Raises `UserError` for one whose pretokens it cannot make."""
    tokens = [visible_text(piece) for piece in tokenizer.pieces]
    kinds = [NORMAL] * len(tokens)
    notes = []
    merges: list[tuple[str, str]] = []
    pretokenizer = "gpt-2"
    if isinstance(tokenizer, CharTokenizer):
        merges = merges_of_characters(tokenizer.characters)
        notes.append("llama.cpp leaves out characters that the model does not know, without a word")
    elif isinstance(tokenizer, BpeTokenizer):
        merges = merges_of(tokenizer.pieces)
        pretokenizer = pretokenizer_of(tokenizer)
    if tokenizer.unicode != "none":
        notes.append(f"llama.cpp does not bring prompts to {tokenizer.unicode}: type them so")
    for number in tokenizer.never_generated:
        tokens[number], kinds[number] = f"<|unused {number}|>", UNUSED
    tokens[tokenizer.end_id], kinds[tokenizer.end_id] = END_OF_TEXT, CONTROL
    return Vocabulary(tokens, kinds, merges or [_DUMMY_MERGE], pretokenizer, notes)


def pretokenizer_of(tokenizer: BpeTokenizer) -> str:
    """llama.cpp's name for the tokenizer's pattern."""
    name = PRETOKENIZERS.get(tokenizer.pattern)
    if name is None:
        what = "was learnt by an earlier version" if tokenizer.kind == "bpe" else "knows marks that it does not"
        raise UserError(
            f"--format gguf: llama.cpp cannot cut a text as this vocabulary of {tokenizer.kind} does, which {what}; "
            "use --format hf, or train a new run"
        )
    return name

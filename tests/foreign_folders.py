"""Tiny Hugging Face folders, written by transformers and not by us."""

import json
from pathlib import Path
from typing import Any

import genuine_gpt2
import torch
import transformers

from config.schema import ModelConfig
from data.tokenizer import ByteTokenizer, Tokenizer
from interop.huggingface import config_fields
from interop.tokenizer_json import to_tokenizer_json


def save_foreign(
    folder: Path,
    architecture: str = "gpt2",
    *,
    tokenizer: Tokenizer | None = None,
    vocab_size: int = 257,
    **changes: Any,
) -> Any:
    """A model with random weights, and a tokenizer beside it (bytes, unless another one is given); the model."""
    torch.manual_seed(0)
    size = {"context_length": 16, "d_model": 16, "num_heads": 2, "num_layers": 2} | changes
    fields = config_fields(ModelConfig(architecture=architecture, **size), vocab_size)
    end = {"bos_token_id": vocab_size - 1, "eos_token_id": vocab_size - 1}
    config = transformers.AutoConfig.for_model(**{**fields, **end})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(to_tokenizer_json(tokenizer or ByteTokenizer())))
    return model


def save_foreign_gpt2(folder: Path, **changes: Any) -> Any:
    """The same with the vocabulary of the published GPT-2, in the two files that it was published with."""
    model = save_foreign(folder, vocab_size=50257, **changes)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_bytes(genuine_gpt2.file_of_gpt2("encoder.json"))
    (folder / "merges.txt").write_bytes(genuine_gpt2.file_of_gpt2("vocab.bpe"))
    return model

"""A Hugging Face folder: a model, its settings and its tokenizer, written whole and read without trusting it.

Names and layouts of what is in it are `interop.huggingface`'s and `interop.tokenizer_json`'s concern.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from config.schema import Config, DataConfig, ModelConfig
from data.durable import sync_folder
from data.paths import one_line, shown_path
from data.tokenizer import END_OF_TEXT, Tokenizer
from engine.archive import LOAD_ERRORS, DamagedError, check_extent, read_archive
from engine.checkpoint import Checkpoint
from errors import CheckpointError, DataError, UserError
from interop.huggingface import OURS, config_fields, from_huggingface, model_config, to_huggingface
from interop.model_card import model_card
from interop.tokenizer_json import from_tokenizer_json, other_special_tokens, to_tokenizer_json
from terminal import tell

DTYPES = {"f32": torch.float32, "f16": torch.float16}
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
GENERATION, TOKENIZER_CONFIG, CARD = "generation_config.json", "tokenizer_config.json", "README.md"
PARTS = (CONFIG, WEIGHTS, TOKENIZER, GENERATION, TOKENIZER_CONFIG, CARD)
GPT2_VOCAB_SIZE = 50257
MARK = "tiny_gpt.exported"  # in files that we wrote: what transformers saves again does not keep it


def write_folder(path: Path, checkpoint: Checkpoint, *, dtype: str = "f32", overwrite: bool = False) -> None:
    """Export the model to a new folder, or to an empty one; with `overwrite` in the place of an earlier export.

    `dtype` is f32 or f16. Raises `UserError` where something else stands there, and `CheckpointError` where the
    weights are not as they were written, or the disk refuses.
    """
    check_place(path, overwrite=overwrite)
    weights = rounded(checkpoint, dtype)
    config, tokenizer = checkpoint.config.model, checkpoint.tokenizer
    with replacing_folder(path) as folder:
        save_file(to_huggingface(config, weights), folder / WEIGHTS, metadata={"format": "pt", MARK: "1"})
        notes = {
            "step": checkpoint.step,
            "tokenizer": tokenizer.kind,
            "num_documents": int(checkpoint.data["num_documents"]),
            "newlines": checkpoint.config.data.newlines,
        }
        start = int(checkpoint.data["start_id"])
        ids = {"bos_token_id": start, "eos_token_id": tokenizer.end_id}
        fields = config_fields(config, tokenizer.vocab_size)
        type_name = str(DTYPES[dtype]).removeprefix("torch.")
        write_json(folder / CONFIG, {**fields, **ids, "dtype": type_name, OURS: notes})
        write_json(folder / GENERATION, {**ids, **generation_fields(checkpoint)})
        write_json(folder / TOKENIZER, to_tokenizer_json(tokenizer))
        write_json(folder / TOKENIZER_CONFIG, tokenizer_fields(config))
        (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors lets nobody else read it
        (folder / CARD).write_text(model_card(checkpoint, dtype), encoding="utf-8")


def rounded(checkpoint: Checkpoint, dtype: str) -> dict[str, Tensor]:
    """The weights as f32 or f16. Raises `CheckpointError` where they are damaged, or too large for f16."""
    weights = checkpoint.make_model(torch.device("cpu")).state_dict()
    weights = {name: weight.to(DTYPES[dtype]) for name, weight in weights.items()}
    check_range(weights, checkpoint)
    return weights


def check_range(weights: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Raise `CheckpointError` for weights that rounding has made infinite."""
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise CheckpointError(f"{checkpoint.where}: weight {name!r} is too large for f16; use --dtype f32")


def generation_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """How text is drawn there unless asked otherwise: as `sample.py` draws it, without what it never draws."""
    never = [*checkpoint.tokenizer.never_generated]
    if int(checkpoint.data["num_documents"]) == 1:
        never.append(checkpoint.tokenizer.end_id)  # that a document ends, the model has not learnt
    return {"do_sample": True, "temperature": 0.8, "top_k": 0} | ({"suppress_tokens": never} if never else {})


def tokenizer_fields(config: ModelConfig) -> dict[str, Any]:
    """What tokenizer_config.json says beside tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "model_max_length": config.context_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # in a text they are text like any other
    }


def check_place(path: Path, *, overwrite: bool) -> None:
    """Raise `UserError` where an export would replace anything but an earlier one that may be."""
    if not os.path.lexists(path):
        if not path.parent.is_dir():
            raise UserError(f"--out {shown_path(path)}: there is no folder {shown_path(path.parent)}; make it first")
        return
    if path.is_symlink() or not path.is_dir():
        raise UserError(f"--out {shown_path(path)}: exists and is no folder; name a new one")
    names = sorted(part.name for part in path.iterdir())
    others = [name for name in names if name not in PARTS]
    if not names:
        return
    if others or not is_ours(path):
        what = shown_path(Path(others[0])) if others else "a model of others"
        raise UserError(f"--out {shown_path(path)}: holds {what}, so it is not replaced; name a new folder")
    if not overwrite:
        raise UserError(
            f"--out {shown_path(path)}: holds an export already; replace it (--overwrite) or name a new one"
        )


def is_ours(path: Path) -> bool:
    """Whether the folder is an export of this program, and has not been written by another since."""
    try:
        with safe_open(path / WEIGHTS, framework="pt") as file:
            return MARK in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well, and vanishes otherwise.

    What stood there before is deleted only after that.
    """
    mark = secrets.token_hex(4)
    temporary, old = (path.with_name(f".{path.name}.{mark}.{kind}") for kind in ("tmp", "old"))
    try:
        temporary.mkdir()
        try:
            yield temporary
            put_in_place(temporary, path, old)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise CheckpointError(
            f"{shown_path(path)}: could not be written: {reason}; make room, or name another folder"
        ) from error


def put_in_place(temporary: Path, path: Path, old: Path) -> None:
    """Rename a folder to `path`, and to `old` what stands there; where that fails, all is as it was."""
    for part in temporary.iterdir():
        with part.open("rb+") as file:
            os.fsync(file.fileno())
    if not path.exists():
        temporary.rename(path)
        return
    path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        old.rename(path)
        raise


def write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def is_folder_of_weights(path: Path) -> bool:
    """Whether this is a Hugging Face folder, whatever is in it."""
    return (path / CONFIG).is_file()


def read_folder(path: Path, report: Callable[[str], None] = tell) -> Checkpoint:
    """The model and the tokenizer of a folder, as a checkpoint of step 0 that knows no text and no optimizer.

    What is otherwise here than with transformers is reported, in one line each. Raises `CheckpointError` for what is
    missing, damaged, or cannot be expressed by our architectures.
    """
    fields = read_json(path / CONFIG)
    model, vocab_size = model_config(fields, shown_path(path / CONFIG))
    files = weight_files(path)
    tokenizer = read_tokenizer(path, model, vocab_size, report)
    weights = from_huggingface(model, vocab_size, read_weights(files), shown_path(files[0]))
    end = fields.get("eos_token_id")
    if end is not None and tokenizer.end_id not in (end if isinstance(end, list) else [end]):
        report(f"ends     eos_token_id is {end!r:.40}, not {tokenizer.end_id} ({END_OF_TEXT}): texts may never end")
    notes = own_notes(fields)
    data = DataConfig(
        tokenizer=tokenizer.kind,
        unicode=tokenizer.unicode,
        newlines="keep" if notes.get("newlines") == "keep" else "normalize",
        bpe_vocab_size=max(258, vocab_size) if tokenizer.kind == "bpe" else 1024,
    )
    start = fields.get("bos_token_id") if notes else None
    has_start = type(start) is int and 0 <= start < vocab_size
    return Checkpoint(
        step=0,
        config=Config(model=model, data=data),
        tokenizer=tokenizer,
        model=weights,
        data={
            "fingerprint": "",
            "num_documents": 1 if notes.get("num_documents") == 1 else 2,  # published models know where one ends
            "start_id": start if has_start else tokenizer.end_id,
        },
        progress={"best_step": None, "best_val_loss": math.inf},
        path=files[0],
    )


def own_notes(fields: dict[str, Any]) -> dict[str, Any]:
    """What an export of ours has noted in config.json; nothing in that of others."""
    notes = fields.get(OURS)
    return notes if isinstance(notes, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises `CheckpointError` where there is none."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise CheckpointError(f"{shown_path(path)}: cannot be read: {reason:.200}; download it again") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{shown_path(path)}: expected a JSON object, found {fields!r:.40}; download it again")
    return fields


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights: all of safetensors, or else of torch. Raises `CheckpointError` for none."""
    for name in (WEIGHTS, "pytorch_model.bin"):
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return [path / name]
        if index.is_file():
            parts = read_json(index).get("weight_map")
            names = {str(part) for part in parts.values()} if isinstance(parts, dict) else set()
            files = [path / Path(part).name for part in sorted(names)]
            if files:
                return files
    raise CheckpointError(
        f"{shown_path(path)}: holds neither {WEIGHTS} nor pytorch_model.bin beside {CONFIG}; download the weights too"
    )


def read_weights(files: list[Path]) -> dict[str, Tensor]:
    """The weights of all files under their names, executing nothing. Raises `CheckpointError` for damaged ones."""
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            part = load_file(file) if file.suffix == ".safetensors" else read_torch_file(file)
            names = {name for name, weight in part.items() if isinstance(name, str) and isinstance(weight, Tensor)}
        except OSError as error:
            raise CheckpointError(f"{shown_path(file)}: {error.strerror or error}; download it again") from error
        except (SafetensorError, DamagedError, *LOAD_ERRORS) as error:
            raise CheckpointError(f"{shown_path(file)}: damaged, or no file of weights; download it again") from error
        if len(names) < len(part) or names & weights.keys():
            twice = sorted(names & weights.keys())
            fault = f"weight {twice[0]!r:.80} is in two files" if twice else "it holds other things than weights"
            raise CheckpointError(f"{shown_path(file)}: {fault}; use another one")
        weights |= part
    return weights


def read_torch_file(file: Path) -> Any:
    """What torch.save wrote to a file, today or before torch 1.6: then without checksums that could be compared."""
    with file.open("rb") as opened:
        if opened.read(4) == b"PK\x03\x04":
            return read_archive(file)
    with warnings.catch_warnings():  # of pickles that it may not know, which then fail
        warnings.simplefilter("ignore")
        content = torch.load(file, map_location="cpu", weights_only=True)
    check_extent(content, file.stat().st_size)
    return content


def read_tokenizer(path: Path, model: ModelConfig, vocab_size: int, report: Callable[[str], None]) -> Tokenizer:
    """The folder's own tokenizer; where there is none, that of the published GPT-2 for a model of its size."""
    try:
        if (path / TOKENIZER).is_file():
            fields = read_json(path / TOKENIZER)
            tokenizer = from_tokenizer_json(fields, where=shown_path(path / TOKENIZER), vocab_size=vocab_size)
            if others := other_special_tokens(fields):
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                names = ", ".join(f"{one_line(name):.40}" for name in others[:3])
                report(f"tokens   {names}{more}: plain text here, and never generated")
            return tokenizer
        if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
            return read_vocab_and_merges(path, vocab_size)
        if model.architecture == "gpt2" and vocab_size == GPT2_VOCAB_SIZE:
            from data.published import tiktoken_tokenizer  # which imports tiktoken

            return tiktoken_tokenizer("gpt2")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    raise CheckpointError(
        f"{shown_path(path)}: holds no {TOKENIZER}, and {vocab_size:,} tokens are not GPT-2's {GPT2_VOCAB_SIZE:,}; "
        "download the tokenizer too"
    )


def read_vocab_and_merges(path: Path, vocab_size: int) -> Tokenizer:
    """GPT-2's vocabulary in the two files of before there was a tokenizer.json."""
    try:
        lines = (path / "merges.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise CheckpointError(
            f"{shown_path(path / 'merges.txt')}: cannot be read: {reason:.200}; download it again"
        ) from error
    merges = [line for line in lines if line and not line.startswith("#version")]
    fields = {
        "model": {"type": "BPE", "vocab": read_json(path / "vocab.json"), "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel"},
    }
    return from_tokenizer_json(fields, where=shown_path(path / "vocab.json"), vocab_size=vocab_size)

"""What a command may be given as a model, and what training starts from."""

import json
from pathlib import Path

import pytest
import torch
from commands import TINY, call, metrics, succeed
from conftest import TEXT, Tiny
from foreign_folders import save_foreign, save_foreign_gpt2

from engine.checkpoint import load_checkpoint
from errors import CheckpointError, UserError
from interop.huggingface_folder import read_folder, write_folder
from interop.opening import load_base, open_model

# Without what the model has of its own.
SHORT = (*(setting for setting in TINY if not setting.startswith("model.")), "train.max_steps=4", "name=tuned")


def test_a_run_a_checkpoint_and_a_folder_are_all_opened(tiny: Tiny) -> None:
    run = tiny.run()
    assert open_model(run.path).step == 1
    assert open_model(str(run.path), "last").step == 2
    assert open_model(run.checkpoint_file(2)).step == 2
    save_foreign(tiny.folder / "foreign")
    assert open_model(tiny.folder / "foreign").config.model.context_length == 16
    with pytest.raises(UserError, match="--checkpoint last has no effect where RUN is a Hugging Face folder"):
        open_model(tiny.folder / "foreign", "last")
    with pytest.raises(CheckpointError, match="no such run"):
        open_model(tiny.folder / "nowhere")
    with pytest.raises(CheckpointError):
        open_model("x" * 5000)


def test_training_starts_from_the_best_checkpoint_of_a_run_or_from_a_file(tiny: Tiny) -> None:
    run, said = tiny.run(), []
    assert load_base(tiny.config(f"train.init_from={run.path}"), said.append).step == 1
    assert load_base(tiny.config(f"train.init_from={run.checkpoint_file(2)}"), said.append).step == 2
    assert said == []


@pytest.mark.parametrize("architecture", ["gpt2", "qwen3"])
def test_the_window_of_a_folder_may_be_cut_and_its_first_positions_stay(tiny: Tiny, architecture: str) -> None:
    model, said = save_foreign(tiny.folder / "foreign", architecture), []
    config = tiny.config(f"train.init_from={tiny.folder / 'foreign'}", "model.context_length=8")
    base = load_base(config, said.append)
    assert said == ["cropped  model.context_length=8, of 16"]
    assert base.config.model.context_length == 8
    idx = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.no_grad():
        found = base.make_model(torch.device("cpu"))(idx)
        torch.testing.assert_close(found, model(idx).logits, atol=1e-5, rtol=1e-5)
    longer = load_base(config.model_copy(update={"model": tiny.config("model.context_length=99").model}), said.append)
    assert longer.config.model.context_length == 16


def test_a_base_that_is_not_there_names_the_setting(tiny: Tiny) -> None:
    (tiny.folder / "folder").mkdir()
    (tiny.folder / "folder" / "config.json").write_text("{}")
    damaged = tiny.folder / "step_00000001.pt"
    damaged.write_bytes(b"")
    for name, words in (("runs/nothing", "no such run"), ("folder", "model_type is None"), (damaged, "damaged")):
        with pytest.raises(CheckpointError, match=rf"^train\.init_from: .*{words}"):
            load_base(tiny.config(f"train.init_from={tiny.folder / name}"), print)


def test_gpt2_is_fine_tuned_exported_and_comes_back(tmp_path: Path) -> None:
    """With its own vocabulary, in real processes: the loss starts where transformers has it, and falls."""
    model = save_foreign_gpt2(tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text(TEXT * 3, encoding="utf-8")
    settings = ("data.source=text.txt", "data.cache_dir=cache", "train.init_from=gpt2", "data.tokenizer=tiktoken:gpt2")
    more = ("model.context_length=8", "train.eval_interval=1", "runtime.device=cpu", "runtime.precision=fp32")
    trained = succeed(tmp_path, "train.py", *settings, *SHORT, *more)
    assert "cropped  model.context_length=8, of 16" in trained.err
    assert "kept     data.tokenizer" not in trained.err
    losses = [line["val/loss"] for line in metrics(tmp_path / "runs" / "tuned") if "val/loss" in line]
    assert losses[-1] < losses[0] < 12
    base = load_checkpoint(next((tmp_path / "runs" / "tuned" / "checkpoints").glob("*04.pt")))
    assert base.tokenizer.kind == "tiktoken:gpt2"
    assert tuple(base.model["position_embedding.weight"].shape) == (8, 16)
    assert model.config.n_positions == 16
    succeed(tmp_path, "export.py", "runs/tuned", "--format", "hf", "--out", "back")
    assert read_folder(tmp_path / "back").tokenizer.kind == "tiktoken:gpt2"


def test_an_export_writes_scores_and_trains_like_the_run_that_it_is_of(tiny: Tiny) -> None:
    run = tiny.run("data.tokenizer=bpe", "data.bpe_vocab_size=280")
    write_folder(tiny.folder / "out", load_checkpoint(run.checkpoint_file(1)))
    by_run, by_folder = (
        [
            succeed(tiny.folder, "sample.py", name, "--seed", "1", "--max-new-tokens", "20").out,
            json.loads(succeed(tiny.folder, "evaluate.py", name, "--text-file", "text.txt", "--json").out)["loss"],
        ]
        for name in (run.path, "out")
    )
    assert by_run == by_folder
    error = call(tiny.folder, "evaluate.py", "out").error()
    assert error == "error: out/model.safetensors: a model without a text of its own; name one with --text-file"
    settings = ("data.source=text.txt", "data.cache_dir=cache", "train.init_from=out", *SHORT)
    assert "start    from out/model.safetensors, step 0" in succeed(tiny.folder, "train.py", *settings).err

"""A trained model, ready for use: from a folder, a file, or the newest run, and from nothing else."""

import os
import shutil

import pytest
import torch

from engine import loading
from engine.checkpoint import load_checkpoint
from engine.loading import add_run_options, load_from_options, load_model
from engine.runtime import Runtime
from errors import ArgumentParser, CheckpointError, ConfigError, DeviceError, UserError

IDX = torch.arange(8)[None]


def logits_of(trained):
    with torch.no_grad():
        return trained.model(IDX)


def expected_logits(file):
    with torch.no_grad():
        return load_checkpoint(file).make_model(torch.device("cpu"))(IDX)


def test_best_last_and_a_file_give_the_weights_that_they_name(tiny):
    run = tiny.run()
    first, second = run.checkpoint_file(1), run.checkpoint_file(2)
    assert not torch.equal(expected_logits(first), expected_logits(second))
    for given, options, file in (
        (run.path, {}, first),
        (str(run.path), {}, first),
        (run.path, {"checkpoint": "last"}, second),
        (run.path, {"checkpoint": second.name}, second),
        (run.path, {"checkpoint": str(second)}, second),
        (second, {}, second),
        (second, {"checkpoint": "best"}, second),
    ):
        trained = load_model(given, device="cpu", **options)
        assert trained.checkpoint.path == file
        assert torch.equal(logits_of(trained), expected_logits(file))
        assert not trained.model.training


def test_without_a_run_it_is_the_one_that_was_saved_last(tiny, monkeypatch):
    old, new = tiny.run(name="old"), tiny.run("model.dropout=0.2", name="new")
    monkeypatch.chdir(tiny.folder)
    assert load_model(device="cpu").checkpoint.config.model.dropout == 0.2
    os.utime(new.checkpoint_file(1), ns=(0, 0))
    os.utime(new.checkpoint_file(2), ns=(0, 0))
    assert load_model(device="cpu").checkpoint.path.parents[1].name == old.path.name


def test_the_model_works_after_text_cache_and_run_are_gone(tiny):
    run = tiny.run()
    expected = expected_logits(run.checkpoint_file(2))
    copy = tiny.folder / "copy.pt"
    shutil.copy(run.checkpoint_file(2), copy)
    for gone in ("runs", "cache"):
        shutil.rmtree(tiny.folder / gone)
    (tiny.folder / "text.txt").unlink()
    trained = load_model(str(copy), device="cpu")
    assert torch.equal(logits_of(trained), expected)
    assert trained.tokenizer.decode(trained.tokenizer.encode("3 sheep,\n")) == "3 sheep,\n"


def test_where_a_text_starts_depends_on_whether_there_were_documents(tiny):
    trained = load_model(str(tiny.run().path), device="cpu")
    assert not trained.has_documents
    assert trained.tokenizer.decode([trained.start_id]) == "\n"
    (tiny.folder / "other.txt").write_text("5 sheep and 7 goats\n", encoding="utf-8")
    sources = f"data.source=[{tiny.folder / 'text.txt'}, {tiny.folder / 'other.txt'}]"
    trained = load_model(str(tiny.run(sources, name="two").path), device="cpu")
    assert trained.has_documents
    assert trained.start_id == trained.tokenizer.end_id


def test_the_options_of_a_command_reach_the_model(tiny):
    run = tiny.run()
    parser = ArgumentParser(prog="x.py")
    parser.add_argument("run")
    add_run_options(parser)
    threads = torch.get_num_threads()
    try:
        arguments = [str(run.path), "--checkpoint", "last", "--device", "cpu", "--precision", "bf16", "--threads", "1"]
        trained = load_from_options(parser.parse_args(arguments))
    finally:
        torch.set_num_threads(threads)
    assert trained.checkpoint.step == 2
    assert (str(trained.runtime.device), trained.runtime.precision, trained.runtime.threads) == ("cpu", "bf16", 1)
    assert trained.model.token_embedding.weight.dtype == torch.float32


def test_what_cannot_be_is_refused_with_its_name(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = tiny.run()
    for options, kind, words in (
        ({"device": "gpu"}, ConfigError, "runtime.device"),
        ({"device": "cuda"}, DeviceError, "runtime.device is 'cuda'"),
        ({"precision": "fp8"}, ConfigError, "runtime.precision"),
        ({"threads": 0}, ConfigError, "runtime.threads"),
        ({"checkpoint": "worst"}, CheckpointError, "--checkpoint worst"),
        ({"weights": "int4"}, UserError, "--weights must be exact or int8, got 'int4'"),
    ):
        with pytest.raises(kind, match=words):
            load_model(str(run.path), **options)
    run.checkpoint_file(1).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step_00000001\.pt: damaged.*step_00000002\.pt"):
        load_model(str(run.path), device="cpu")
    with pytest.raises(CheckpointError, match="no such run"):
        load_model(str(tiny.folder / "nowhere"))


def test_a_checkpoint_besides_a_checkpoint_file_is_not_silently_ignored(tiny):
    file = tiny.run().checkpoint_file(2)
    with pytest.raises(UserError, match="--checkpoint last has no effect where RUN is itself a checkpoint file"):
        load_model(str(file), checkpoint="last")


def test_a_model_computes_as_it_was_trained_unless_asked_otherwise(tiny):
    run = tiny.run("runtime.precision=bf16")
    assert load_model(str(run.path), device="cpu").runtime.precision == "bf16"
    assert load_model(str(run.path), device="cpu").runtime.reason == "as trained"
    assert load_model(str(run.path), device="cpu", precision="fp32").runtime.precision == "fp32"


def test_weights_of_8_bits_are_close_and_never_the_default(tiny):
    run = tiny.run()
    exact, rounded = (load_model(str(run.path), device="cpu", **options) for options in ({}, {"weights": "int8"}))
    assert (exact.weights, rounded.weights) == ("exact", "int8")
    before, after = exact.model.state_dict(), rounded.model.state_dict()
    for name, weight in before.items():
        if weight.dim() == 2 and "embedding" not in name:
            assert not torch.equal(weight, after[name])
            assert (weight - after[name]).abs().max() <= weight.abs().max() / 127
    assert torch.equal(exact.model.final_norm.weight, rounded.model.final_norm.weight)


def test_weights_of_8_bits_are_refused_where_there_is_no_kernel_for_them(tiny, monkeypatch):
    run = tiny.run()
    monkeypatch.setattr(loading, "choose_runtime", lambda *_: Runtime(torch.device("meta"), "fp32", False, 1, "a test"))
    with pytest.raises(UserError, match="--weights int8 is for CPUs"):
        load_model(str(run.path), weights="int8")

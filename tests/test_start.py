"""Where a run starts: what may change on resume, and what a continued model keeps."""

import pytest
from conftest import Tiny

from engine.checkpoint import load_checkpoint
from engine.processes import ALONE, Processes
from engine.runtime import choose_runtime
from engine.start import describe, inherit, prepare_text, report_changes
from engine.tracking import Console
from errors import ConfigError, DataError


def test_standard_input_is_refused_where_it_would_reach_one_process_of_several(tiny: Tiny) -> None:
    two = Processes(rank=0, local_rank=0, world_size=2)
    for override in ("data.source=-", "data.val_source=[a.txt, -]"):
        with pytest.raises(DataError, match="standard input"):
            prepare_text(tiny.config(override), None, processes=two, console=Console(silent=True))


@pytest.mark.parametrize(
    "override",
    [
        "optim.learning_rate=0.5",
        "optim.schedule=trapezoid",
        "train.max_steps=99",
        "train.eval_interval=3",
        "train.keep_checkpoints=7",
        "data.cache_dir=elsewhere",
        "data.source=moved.txt",
        "data.encoding=cp1252",
        "runtime.threads=1",
        "tracking.wandb=offline",
    ],
)
def test_what_leaves_model_and_data_alone_may_change_and_is_said(tiny: Tiny, override: str) -> None:
    said: list[str] = []
    report_changes(tiny.config(), tiny.config(override), said.append)
    key = override.partition("=")[0]
    assert len(said) == 1
    assert said[0].startswith(f"changed  {key}: ")


@pytest.mark.parametrize(
    "override",
    [
        "seed=3",
        "name=other",
        "model.d_model=32",
        "model.dropout=0.5",
        "data.tokenizer=byte",
        "data.val_fraction=0.5",
        "data.documents=line",
        "data.newlines=keep",
        "data.unicode=NFC",
        "data.min_char_count=2",
        "optim.optimizer=adamw",
        "train.init_from=runs/other",
    ],
)
def test_what_changes_model_or_data_is_refused(tiny: Tiny, override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key} is .* in this run and cannot become .* on resume"):
        report_changes(tiny.config(), tiny.config(override), print)


def test_all_that_is_refused_is_named_at_once(tiny: Tiny) -> None:
    with pytest.raises(ConfigError) as error:
        report_changes(tiny.config(), tiny.config("seed=3", "model.num_layers=1", "train.max_steps=4"), print)
    assert [line.split()[0] for line in str(error.value).splitlines()] == ["seed", "model.num_layers"]


def test_the_models_settings_are_kept_but_for_dropout_and_the_rest_is_mine(tiny: Tiny) -> None:
    base = load_checkpoint(tiny.run().checkpoint_file(1))
    said: list[str] = []
    mine = tiny.config("model.d_model=64", "model.dropout=0.3", "data.tokenizer=byte", "optim.learning_rate=0.5")
    config = inherit(mine, base, said.append)
    assert config.model == base.config.model.model_copy(update={"dropout": 0.3})
    assert config.data.tokenizer == "char"
    assert config.optim.learning_rate == 0.5
    assert said[0].startswith("start    from ")
    assert said[1:] == [
        "kept     model.d_model=16 as in that model, not 64",
        "kept     data.tokenizer=char as in that model, not byte",
    ]


def test_the_peak_is_said_to_be_that_of_all_processes_together(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config()
    prepared, runtime = tiny.prepared(config), choose_runtime(config.runtime, 0)
    for processes, device, peak in (
        (ALONE, "cpu, ", "150 GFLOP/s, of which MFU is a share"),
        (Processes(world_size=2), "2 processes, each on cpu, ", "150 GFLOP/s together, of which MFU is a share"),
    ):
        describe(config, prepared, runtime=runtime, peak=150e9, processes=processes, console=Console())
        *_, device_line, peak_line = capsys.readouterr().err.splitlines()
        assert device_line.startswith(f"device   {device}")
        assert peak_line == f"peak     {peak}"


def test_no_value_is_null_in_what_is_said_of_a_change(tiny: Tiny) -> None:
    said: list[str] = []
    report_changes(
        tiny.config("train.max_steps=20"), tiny.config("train.max_steps=null", "train.max_minutes=1"), said.append
    )
    assert said == ["changed  train.max_steps: 20 -> null", "changed  train.max_minutes: null -> 1.0"]


@pytest.mark.parametrize(("warmup_steps", "is_said"), [(19, False), (20, True), (100, True)])
def test_a_warm_up_as_long_as_the_run_is_said(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], warmup_steps: int, is_said: bool
) -> None:
    state = tiny.state(f"optim.warmup_steps={warmup_steps}")
    describe(state.config, state.prepared, runtime=state.runtime, peak=1e9, processes=ALONE, console=Console())
    assert ("optim.warmup_steps=1 would not" in capsys.readouterr().err) is is_said

"""Command lines, read and written."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluate
import sample
from config.describe import SETTINGS
from config.load import is_override
from engine.command_line import ROOT, command, module_command, read_command_line, split_arguments
from engine.run_folder import RunFolder
from errors import ConfigError, UserError


@pytest.mark.parametrize(
    "argument",
    ["train.max_steps=5", "--train.max_steps=5", "seed=1", "--seed=1", "--runs-dir=x", "data.source=a/b=c.txt"],
)
def test_a_setting_is_told_from_an_option(argument: str) -> None:
    assert is_override(argument)


@pytest.mark.parametrize("argument", ["recipe.yaml", "--resume", "--resume=runs/a", "--quiet", "runs/lr=3/recipe.yaml"])
def test_an_option_or_a_path_is_told_from_a_setting(argument: str) -> None:
    assert not is_override(argument)


def test_a_run_may_have_an_equals_sign_in_its_name() -> None:
    rest, overrides = split_arguments(["--resume", "lr=3", "seed=1", "a/lr=3.yaml"])
    assert rest == ["--resume", "lr=3", "a/lr=3.yaml"]
    assert overrides == ["seed=1"]


def test_without_a_recipe_the_quickstart_is_meant() -> None:
    order = read_command_line([])
    assert order.stem == "quickstart"
    assert order.config.data.source == "stdlib"
    assert order.resumed is order.checkpoint is None


def test_the_last_of_two_settings_wins_over_the_recipe() -> None:
    order = read_command_line(["optim.learning_rate=1", "--optim.learning_rate=1e-4", "--dry-run"])
    assert order.config.optim.learning_rate == 1e-4
    assert order.dry_run


def test_a_run_to_resume_brings_its_own_settings(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "my run")
    run.checkpoints.mkdir(parents=True)
    run.config_file.write_text("seed: 7\n", encoding="utf-8")
    for step in (3, 20):
        run.checkpoint_file(step).touch()
    order = read_command_line(["--resume", str(run.path), "train.max_steps=50"])
    assert (order.config.seed, order.config.train.max_steps) == (7, 50)
    assert order.resumed == run
    assert order.checkpoint is None, "the last, once it is locked"
    named = read_command_line(["--resume", str(run.checkpoint_file(3)), "seed=1"])
    assert named.checkpoint == run.checkpoint_file(3)
    assert named.resume_instead(Path("a b.pt")).endswith("train.py --resume 'a b.pt' seed=1")


@pytest.mark.parametrize("more", [["recipe.yaml"], ["--overwrite"]])
def test_a_run_to_resume_takes_no_recipe_and_is_not_overwritten(tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(UserError, match=f"{more[0]} must go"):
        read_command_line(["--resume", str(tmp_path), *more])


def test_a_command_can_be_pasted_into_a_shell_wherever_one_is(tmp_path: Path) -> None:
    """`python` need not be the interpreter with the libraries, and the scripts lie where they lie."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); from engine.command_line import command as c; "
    script += "print(c('sample.py', \"runs/it's me\"))"
    printed = subprocess.run(
        [sys.executable, "-c", script, str(ROOT)], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    interpreter, path, run = shlex.split(printed)
    assert Path(path) == ROOT / "sample.py"
    assert run == "runs/it's me"
    has_numpy = subprocess.run([interpreter, "-c", "import numpy"], check=False)
    assert has_numpy.returncode == 0


def test_a_command_is_short_where_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert command("train.py", "--resume", Path("runs") / "a") == "python train.py --resume runs/a"


@pytest.mark.parametrize(("option", "hint"), [("--dropout=0", "model.dropout"), ("--lr=1", "optim.learning_rate")])
def test_a_setting_without_its_section_gets_a_hint(option: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {hint}"):
        read_command_line([option])


def test_overwrite_without_a_name_means_the_run_that_is_named_after_the_recipe() -> None:
    assert read_command_line(["--overwrite"]).config.name == "quickstart"
    assert read_command_line([]).config.name is None


def test_a_checkpoint_outside_of_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    file = tmp_path / "step_00000001.pt"
    file.touch()
    with pytest.raises(UserError, match="does not lie in the folder of a run"):
        read_command_line(["--resume", str(file)])


def test_the_command_of_a_package_is_found_where_the_shell_does_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert shlex.split(module_command("wandb", "leet", "a b")) == [sys.executable, "-m", "wandb", "leet", "a b"]
    assert shlex.split(module_command("tensorboard.main")) == [sys.executable, "-m", "tensorboard.main"]
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert shlex.split(module_command("tensorboard.main"))[0] in ("tensorboard", sys.executable)
    assert shlex.split(module_command("pip", "list"))[0] in ("pip", sys.executable)


OPTIONS = ["--resume", "--overwrite", "--dry-run", "--quiet", "--prompt", "--prompt-file", "--max-new-tokens", "--seed"]
OPTIONS += ["--temperature", "--top-k", "--top-p", "--num-samples", "--json", "--out", "--split", "--text-file", "--"]
OPTIONS += ["--checkpoint", "--device", "--precision", "--threads", "--help", "-h", "--no-such-option", "-", "---"]
VALUES = [
    "0",
    "1",
    "-1",
    "1e9",
    "nan",
    "inf",
    "x",
    "",
    " ",
    "val",
    "best",
    "a=b",
    "a/b=c",
    "\ud800",
    "é🙂",
    "~x",
    "\n",
]
WORDS = (
    st.sampled_from(OPTIONS + VALUES)
    | st.builds("{}={}".format, st.sampled_from(OPTIONS + list(SETTINGS)), st.sampled_from(VALUES))
    | st.text(st.characters(exclude_characters="\0"), max_size=20)  # which no command line can hold
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(WORDS, max_size=6),
    st.sampled_from([read_command_line, sample.read_command_line, evaluate.read_command_line]),
)
def test_any_command_line_is_an_order_or_a_mistake_in_words(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str], reader: Callable[[list[str]], object]
) -> None:
    before = Path.cwd()
    os.chdir(tmp_path_factory.getbasetemp())
    outcome: object
    try:
        outcome = reader(arguments)
    except UserError as error:
        outcome = str(error).strip()
    except SystemExit as end:
        outcome = end.code == 0  # only --help ends so
    finally:
        os.chdir(before)
    assert outcome

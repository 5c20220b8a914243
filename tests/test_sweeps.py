"""The sweeps of config/sweeps: wandb's own agent makes commands of them that train.py takes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ENGLISH, ROOT, SCRIPTS, TINY_MODEL, metrics, succeed
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args
from wandb_server import WandbServer

from config.describe import SETTINGS

SWEEPS = sorted((ROOT / "config" / "sweeps").glob("*.yaml"))
SMALL = (*TINY_MODEL, "train.max_steps=2", "train.eval_interval=2", "train.batch_size=4")


def values(parameter: dict[str, Any]) -> list[Any]:
    """The values at the ends of a parameter's range, or all of them."""
    return parameter.get("values") or [parameter["min"], parameter["max"]]


def agent_commands(sweep: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The commands that an agent starts for the lowest and the highest values, and these."""
    for end in (0, -1):
        chosen = {name: {"value": values(parameter)[end]} for name, parameter in sweep["parameters"].items()}
        words = create_sweep_command_args({"args": chosen})
        words |= {"env": [], "interpreter": [sys.executable], "program": [sweep["program"]]}
        command: list[str] = []
        for part in create_sweep_command(list(sweep["command"])):
            command += words[part[2:-1]] if part.startswith("${") else [part]
        yield command, {name: value["value"] for name, value in chosen.items()}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_varies_settings_within_their_range_and_minimizes_what_is_logged(path: Path, tmp_path: Path) -> None:
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(sweep["parameters"]) <= set(SETTINGS)
    assert sweep["program"] in SCRIPTS
    (tmp_path / "my_text.txt").write_text(ENGLISH * 20, encoding="utf-8")
    for (_, program, recipe, *arguments), chosen in agent_commands(sweep):
        assert (ROOT / recipe).is_file()
        ours = (*SMALL, "tracking.wandb=disabled", "name=a", "--overwrite")
        succeed(tmp_path, program, ROOT / recipe, *arguments, *ours)
        config = yaml.safe_load((tmp_path / "runs" / "a" / "config.yaml").read_text(encoding="utf-8"))
        for name, value in chosen.items():
            section, setting = name.split(".")
            assert config[section][setting] == pytest.approx(value)
        assert sweep["metric"]["name"] in metrics(tmp_path / "runs" / "a")[-1]


def test_a_run_of_an_agent_has_the_id_and_the_sweep_that_the_agent_gave(tmp_path: Path, server: WandbServer) -> None:
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    given = tmp_path / "given.yaml"  # as an agent writes it
    given.write_text("wandb_version: 1\n\noptim.learning_rate:\n  value: 0.002\n", encoding="utf-8")
    agent = {"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "r1", "WANDB_SWEEP_PARAM_PATH": str(given)}
    arguments = ("--optim.learning_rate=0.002", *SMALL, "data.source=text.txt", "tracking.wandb=online", "--quiet")
    # wandb leaves the file of the agent open.
    done = succeed(tmp_path, "train.py", *arguments, env={**server.environment, **agent, "PYTHONWARNINGS": ""})
    assert done.err == ""
    assert list(server.runs) == ["r1"]
    assert server.only_run().fields["sweep"] == "s1"
    assert server.only_run().history()[-1]["val/loss"] == metrics(tmp_path / "runs" / "quickstart")[-1]["val/loss"]
    assert '"learning_rate":0.002' in server.only_run().fields["config"]

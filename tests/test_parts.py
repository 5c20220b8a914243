"""The parts of a run in its folder: which of them a server may have, and up to which step."""

import json
from pathlib import Path

import pytest

from engine.parts import drop, last_sent, parts, unsent
from engine.run_folder import RunFolder

FIRST, SECOND = "20300101_000001", "20300101_000002"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def part(run: RunFolder, name: str, *, step: int | None = None, synced: bool = False) -> Path:
    """A part as wandb leaves it: with a summary where it was sent to its end."""
    path = run.wandb / name
    (path / "files").mkdir(parents=True)
    (path / "run-a.wandb").touch()
    if synced:
        (path / "run-a.wandb.syncstate").touch()
    if step is not None:
        (path / "files" / "wandb-summary.json").write_text(json.dumps({"_step": step}), encoding="utf-8")
    return path


def test_a_run_without_parts_was_never_sent(run: RunFolder) -> None:
    assert last_sent(run, "a") == -1
    assert unsent(run, "a") == []


def test_parts_are_those_of_the_run_and_not_of_one_with_a_name_like_it(run: RunFolder) -> None:
    mine = [part(run, f"offline-run-{FIRST}-a"), part(run, f"run-{SECOND}-a"), part(run, f"run-{SECOND}-a-1")]
    part(run, f"offline-run-{FIRST}-b-a")
    part(run, f"offline-run-{FIRST}-a-123456")
    (run.wandb / "latest-run").symlink_to(mine[1])
    assert parts(run, "a") == mine


def test_unsent_is_what_no_server_has_seen(run: RunFolder) -> None:
    kept, other = part(run, f"offline-run-{FIRST}-a"), part(run, f"offline-run-{FIRST}-b")
    sent = [part(run, f"offline-run-{SECOND}-a", step=7, synced=True), part(run, f"run-{FIRST}-a", step=5)]
    assert last_sent(run, "a") == 7
    assert unsent(run, "a") == [kept]
    drop([kept])
    assert not kept.exists()
    assert all(path.exists() for path in (*sent, other))


@pytest.mark.parametrize("summary", [None, "", "[]", '{"_step": "x"}'])
def test_a_part_that_was_sent_without_an_end_leaves_it_unknown(run: RunFolder, summary: str | None) -> None:
    path = part(run, f"run-{FIRST}-a")
    if summary is not None:
        (path / "files" / "wandb-summary.json").write_text(summary, encoding="utf-8")
    assert last_sent(run, "a") is None


def test_a_part_in_which_nothing_was_logged_counts_for_nothing(run: RunFolder) -> None:
    path = part(run, f"run-{FIRST}-a")
    (path / "files" / "wandb-summary.json").write_text("{}", encoding="utf-8")
    assert last_sent(run, "a") == -1

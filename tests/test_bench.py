"""The measurements can still be made: every script in bench/ imports what there is, and says how to call it."""

import importlib.util
import sys
from pathlib import Path

import pytest
from commands import ENGLISH, ROOT, TINY, call

SCRIPTS = sorted(path for path in (ROOT / "bench").glob("*.py") if path.stem != "common")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_measurement_explains_itself(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT))  # before it, as bench/common.py puts it
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    spec = importlib.util.spec_from_file_location(f"bench_{script.stem}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out
    assert f"python bench/{script.name}" in (module.__doc__ or ""), "how to run it"


@pytest.mark.parametrize(
    ("script", "options", "column"),
    [("minutes", ("--minutes", "0.03", "--rounds", "1"), "beside the budget"), ("steps", ("--steps", "1"), "share")],
)
def test_options_may_stand_between_settings_and_the_developers_dashboard_does_not_matter(
    tmp_path: Path, script: str, options: tuple[str, ...], column: str
) -> None:
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    first, *others = TINY
    settings = ("data.source=text.txt", f"data.cache_dir={tmp_path / 'cache'}", *others)
    command = (ROOT / "bench" / f"{script}.py", first, *options, *settings)
    finished = call(tmp_path, *command, env={"WANDB_MODE": "nonsense", "PYTHONWARNINGS": "default"})
    assert finished.code == 0, finished.err
    assert column in finished.out

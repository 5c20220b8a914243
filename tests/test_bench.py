"""The measurements can still be made: every script in bench/ imports what there is, and says how to call it."""

import importlib.util
import sys
from pathlib import Path

import pytest
from commands import ROOT

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

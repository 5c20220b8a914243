"""The command as a user meets it: what it writes, what it never replaces, and what it says."""

import sys
from pathlib import Path

import pytest
from commands import call, succeed
from conftest import Tiny
from foreign_folders import save_foreign

import export
from errors import UserError
from interop.huggingface_folder import PARTS


def test_a_run_becomes_a_folder_or_a_file(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.run()
    folder = succeed(tiny.folder, "export.py", "--format", "hf", "--out", "hf")  # of the newest run
    assert folder.out.startswith("hf  hf, f32, ")
    assert folder.err == "export   runs/tiny/checkpoints/step_00000001.pt, 1 step\n"
    assert {path.name for path in (tiny.folder / "hf").iterdir()} == {*PARTS}
    last = ("runs/tiny", "--checkpoint", "last", "--format", "gguf", "--dtype", "f16", "--out", "tiny.gguf")
    file = succeed(tiny.folder, "export.py", *last)
    assert file.out.startswith("tiny.gguf  gguf, f16, ")
    assert "step_00000002.pt, 2 steps" in file.err
    assert (tiny.folder / "tiny.gguf").read_bytes().startswith(b"GGUF")
    assert call(tiny.folder, "export.py", *last).error() == (
        "error: --out tiny.gguf: exists already; replace it (--overwrite) or name another file"
    )
    succeed(tiny.folder, "export.py", *last, "--overwrite")


def test_what_stands_there_is_not_replaced(tiny: Tiny) -> None:
    tiny.run()
    (tiny.folder / "thesis.gguf").write_text("years of work", encoding="utf-8")
    (tiny.folder / "folder").mkdir()
    for form, out, words in (
        ("gguf", "thesis.gguf", "is no GGUF file, so it is not replaced"),
        ("gguf", "folder", "is a folder; name a file in it"),
        ("gguf", "nowhere/a.gguf", "there is no folder nowhere"),
        ("hf", "thesis.gguf", "exists and is no folder"),
        ("hf", "runs", "holds tiny, so it is not replaced"),
        ("hf", "nowhere/a", "there is no folder nowhere"),
    ):
        arguments = ("export.py", "runs/tiny", "--format", form, "--out", out, "--overwrite")
        assert words in call(tiny.folder, *arguments).error()
    assert (tiny.folder / "thesis.gguf").read_text(encoding="utf-8") == "years of work"


def test_mistakes_are_one_line(tiny: Tiny) -> None:
    for arguments, words in (
        (("--out", "a"), "required: --format"),
        (("--format", "onnx", "--out", "a"), "invalid choice: 'onnx'"),
        (("--format", "hf"), "required: --out"),
        (("runs/none", "--format", "hf", "--out", "a"), "no such run"),
    ):
        assert words in call(tiny.folder, "export.py", *arguments).error()


def test_a_model_of_others_goes_through_too(tmp_path: Path) -> None:
    save_foreign(tmp_path / "foreign", "qwen3")
    for form in ("hf", "gguf"):
        succeed(tmp_path, "export.py", "foreign", "--format", form, "--out", f"out-{form}")


def test_without_the_optional_library_one_line_says_what_to_install(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.run()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"--format gguf needs the library gguf: pip install gguf"):
        export.main([str(run.path), "--format", "gguf", "--out", str(tiny.folder / "a.gguf")])
    assert export.main([str(run.path), "--format", "hf", "--out", str(tiny.folder / "a")]) == 0

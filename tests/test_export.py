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


def test_a_run_becomes_a_folder_or_a_file(tiny: Tiny) -> None:
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


def refused(*arguments: str) -> str:
    """What the command says to these arguments, which it refuses."""
    with pytest.raises(UserError) as error:
        export.main(arguments)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_what_stands_there_is_not_replaced(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.run()
    monkeypatch.chdir(tiny.folder)
    (tiny.folder / "thesis.gguf").write_text("years of work", encoding="utf-8")
    (tiny.folder / "folder").mkdir()
    for form, out, words in (
        ("gguf", "thesis.gguf", "is no GGUF file of this program, so it is not replaced"),
        ("gguf", "folder", "is a folder; name a file in it"),
        ("gguf", "nowhere/a.gguf", "there is no folder nowhere"),
        ("hf", "thesis.gguf", "exists and is no folder"),
        ("hf", "runs", "holds tiny, so it is not replaced"),
        ("hf", "nowhere/a", "there is no folder nowhere"),
        ("hf", ".", "so it is not replaced"),
        ("hf", "runs/tiny", "this is the model (RUN)"),
        ("gguf", "runs/tiny/checkpoints/step_00000009.pt", "this belongs to the run"),
        ("gguf", "x" * 300, "File name too long"),
    ):
        assert words in refused("runs/tiny", "--format", form, "--out", out, "--overwrite")
    assert (tiny.folder / "thesis.gguf").read_text(encoding="utf-8") == "years of work"


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, words in (
        (("--out", "a"), "required: --format"),
        (("--format", "onnx", "--out", "a"), "invalid choice: 'onnx'"),
        (("--format", "hf"), "required: --out"),
        (("runs/none", "--format", "hf", "--out", "a"), "no such run"),
    ):
        assert words in refused(*arguments)


def test_a_model_of_others_goes_through_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_foreign(tmp_path / "foreign", "qwen3")
    monkeypatch.chdir(tmp_path)
    for form in ("hf", "gguf"):
        assert export.main(["foreign", "--format", form, "--out", f"out-{form}"]) == 0
        assert (tmp_path / f"out-{form}").exists()


def test_without_the_optional_library_one_line_says_what_to_install(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.run()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"--format gguf needs the library gguf: pip install gguf"):
        export.main([str(run.path), "--format", "gguf", "--out", str(tiny.folder / "a.gguf")])
    assert export.main([str(run.path), "--format", "hf", "--out", str(tiny.folder / "a")]) == 0

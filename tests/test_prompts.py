"""Prompts: read from where they are, and what a model sees of them."""

import io
import sys
from pathlib import Path

import pytest
from conftest import Tiny

from engine.loading import TrainedModel, load_model
from engine.prompts import Prompt, read_prompt, read_prompts, texts_of, unescaped
from errors import DataError


@pytest.fixture
def trained(tiny: Tiny) -> TrainedModel:
    return load_model(str(tiny.run("data.min_char_count=20").path), device="cpu")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"a\nb", "a\nb"),
        (r"\n\n", "\n\n"),
        (r"\t", "\t"),
        (r"\\n", r"\n"),
        (r"\\\n", "\\\n"),
        (r"\+ \x \d \ end\\", r"\+ \x \d \ end" + "\\"),
        ("naïve\n", "naïve\n"),
    ],
)
def test_escapes_are_newlines_tabs_and_themselves_and_nothing_else(typed: str, meant: str) -> None:
    assert unescaped(typed) == meant


def test_every_line_of_a_file_is_a_prompt_an_empty_one_too(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffone\r\n\r\n three\u2028\x0b\nfour".encode())
    prompts = read_prompts(str(file), "--prompts-file")
    assert [prompt.text for prompt in prompts] == ["one", "", " three\u2028\x0b", "four"]
    assert prompts[2].where == f"--prompts-file {file}, line 3"
    file.write_bytes(rb"one\ntwo" + b"\n\n")
    assert [prompt.text for prompt in read_prompts(str(file), "--prompts-file")] == ["one\ntwo", ""]


def test_an_empty_file_of_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        read_prompts(str(tmp_path / "none.txt"), "--prompts-file")


def test_a_file_may_hold_what_no_training_text_may(tmp_path: Path) -> None:
    (tmp_path / "nul.txt").write_bytes(b"a\x00b\x1b\r\n")
    assert read_prompt(str(tmp_path / "nul.txt"), "--prompt-file") == "a\x00b\x1b\r\n"


def test_standard_input_is_read_as_utf_8_without_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\ufeffné\r\n".encode()), encoding="ascii"))
    assert read_prompt("-", "--prompt-file") == "né\r\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    with pytest.raises(DataError, match=r"^--prompt-file -: byte 3 .*not UTF-8"):
        read_prompt("-", "--prompt-file")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        read_prompt("-", "--prompt-file")


def test_unknown_characters_are_refused_with_the_place_of_the_prompt(tiny: Tiny) -> None:
    trained = load_model(str(tiny.run().path), device="cpu")
    prompts = [Prompt("1"), Prompt("é", "--prompts-file p.txt, line 2")]
    with pytest.raises(DataError, match=r"^--prompts-file p.txt, line 2: .*'é' at 0.*or --skip-unknown$"):
        texts_of(trained, prompts, seed=0)


def test_unknown_characters_can_be_skipped_which_is_said(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_model(str(tiny.run().path), device="cpu")
    (text,) = texts_of(trained, [Prompt("é1é\r\nß")], seed=0, skip_unknown=True)
    assert text.prompt == "1\n"
    assert text.ids == trained.tokenizer.encode("1\n").tolist()
    assert capsys.readouterr().err == "prompt: skipped 'é', 'ß'\n"


def test_what_the_model_does_not_see_is_said(trained: TrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    texts_of(trained, [Prompt("1234")], seed=0)
    assert capsys.readouterr().err == "", "nothing to say"
    texts_of(trained, [Prompt("é" * 2 + "1" * 7, "line 9")], seed=0, num_samples=3)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "line 9: 2 characters unknown to the model, which sees only that each is a rare one",
        "line 9: has 9 tokens, of which the model reads the last 8",
    ]

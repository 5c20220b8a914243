"""Beginnings that are typed, on a terminal and from a pipe."""

import io
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import call, start
from conftest import Tiny

from engine.choice import SamplingSettings
from engine.dialogue import Dialogue
from engine.loading import TrainedModel, load_model
from engine.writing import new_texts, write_on
from errors import DataError

fcntl, pty, termios = (pytest.importorskip(name, reason="needs POSIX") for name in ("fcntl", "pty", "termios"))
GREEDY = SamplingSettings(temperature=0)


@pytest.fixture
def trained(tiny: Tiny) -> TrainedModel:
    return load_model(str(tiny.run().path), device="cpu")


def converse(trained: TrainedModel, typed: str, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """What is shown where these lines are read from a pipe."""
    settings = {"settings": GREEDY, "max_new_tokens": 6, "seed": 1, "stops": [], **options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(typed))
        Dialogue(trained, **settings).run()
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def greedily(trained: TrainedModel, prompt: str, length: int) -> str:
    """A beginning and how it goes on."""
    (text,) = new_texts(trained, [prompt], seed=0)
    for _ in write_on(trained, [text], max_new_tokens=length, settings=GREEDY):
        pass
    return prompt + text.continuation


def test_a_line_is_written_on_and_the_next_begins_anew(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = converse(trained, "12\n7 sheep\n", capsys)
    assert shown == greedily(trained, "12", 6) + "\n" + greedily(trained, "7 sheep", 6) + "\n"


def test_an_empty_line_goes_on_from_there(trained: TrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    shown = converse(trained, "12\n\n\r\n", capsys)
    assert shown.replace("\n", "") == greedily(trained, "12", 18).replace("\n", "")
    assert converse(trained, "\n", capsys) == greedily(trained, "", 6) + "\n", "or from nothing"


def test_a_plus_adds_to_the_text_and_escapes_are_what_a_line_cannot_hold(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    first = greedily(trained, "12", 6)
    added = greedily(trained, first + "\n3", 6)[len(first) :]
    assert converse(trained, "12\n+\\n3\n", capsys) == first + "\n" + added + "\n"
    assert converse(trained, "+12\n", capsys) == first + "\n"


def test_after_a_stop_string_it_goes_on_behind_it(trained: TrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    whole = greedily(trained, "12", 30)
    stop = whole[5:8]
    assert "\n" not in whole, "else this test needs another beginning"
    before, behind = whole[: whole.index(stop, 2)], whole[whole.index(stop, 2) + len(stop) :]
    first, second, end = converse(trained, "12\n\n", capsys, stops=[stop], max_new_tokens=30).split("\n")
    assert (first, end) == (before, "")
    assert second.startswith(stop)
    assert (second + stop).startswith((stop + behind)[: len(second)])
    assert len(second) > len(stop) or behind.startswith(stop)


def test_after_the_end_of_a_document_another_one_begins(
    tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = load_model(str(tiny.run("data.documents=line").path), device="cpu")
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n" + "\n" * 10))
    hot = SamplingSettings(temperature=1.5)
    dialogue = Dialogue(trained, settings=hot, max_new_tokens=200, seed=1)
    dialogue.run()
    shown = capsys.readouterr().out
    assert dialogue.text is not None
    assert list(dialogue.text.ids).count(trained.tokenizer.end_id) >= 5
    assert shown.count("\n") == 11
    assert "<|" not in shown


def test_an_addition_of_which_nothing_is_known_is_none(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO("12\n+ZZ\n"))
        dialogue = Dialogue(trained, settings=GREEDY, max_new_tokens=6, seed=1, skip_unknown=True)
        dialogue.run()
    assert capsys.readouterr().out.replace("\n", "") == greedily(trained, "12", 12).replace("\n", "")


def test_a_refused_addition_changes_nothing(trained: TrainedModel, capsys: pytest.CaptureFixture[str]) -> None:
    stop = greedily(trained, "12", 30)[5:8]
    dialogue = Dialogue(trained, settings=GREEDY, max_new_tokens=30, seed=1, stops=[stop])
    dialogue.answer("12", "line 1")
    before = dialogue.text
    capsys.readouterr()
    with pytest.raises(DataError, match="line 2"):
        dialogue.answer("+Z", "line 2")
    assert capsys.readouterr().out == ""
    assert dialogue.text is before


def test_what_ctrl_c_cut_off_is_shown_when_it_goes_on(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    dialogue = Dialogue(trained, settings=GREEDY, max_new_tokens=6, seed=1)
    dialogue.answer("12", "line 1")
    capsys.readouterr()
    assert dialogue.text is not None
    dialogue.text.new_ids += trained.tokenizer.encode("34").tolist()  # as if they had been drawn and not shown
    dialogue.text.ended = False
    dialogue.answer("", "line 2")
    assert capsys.readouterr().out.startswith("34")


def test_every_answer_draws_anew_and_a_seed_repeats_them_all(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = {"settings": SamplingSettings(temperature=1.5), "max_new_tokens": 30}
    shown = converse(trained, "12\n12\n", capsys, **hot)
    assert shown == converse(trained, "12\n12\n", capsys, **hot)
    assert shown != converse(trained, "12\n12\n", capsys, **hot, seed=2)
    assert not shown.startswith(shown[len(shown) // 2 :])


def test_a_line_that_cannot_be_read_ends_what_comes_from_a_pipe(
    trained: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataError, match=r"^line 2 of the input: .*'Z' at 0"):
        converse(trained, "12\nZ\n", capsys)
    assert converse(trained, "12\n1\n", capsys, skip_unknown=True)


class Terminal:
    """sample.py --interactive on a terminal of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.screen, theirs = pty.openpty()
        self.seen = ""
        self.deadline = time.monotonic() + 90
        self.process = start(
            folder,
            "sample.py",
            "runs/tiny",
            "--interactive",
            *options,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def wait_for_text(self, length: int) -> None:
        """Until the screen has shown so much since `seen` was emptied."""
        while len(self.seen) < length:
            self.look()

    def look(self) -> None:
        assert time.monotonic() < self.deadline, self.seen[-2000:]
        if select.select([self.screen], [], [], 0.1)[0]:
            self.seen += os.read(self.screen, 65536).decode("utf-8", "replace")

    def wait_for(self, expected: str, times: int = 1) -> None:
        """Until the screen has shown it so often."""
        while self.seen.count(expected) < times:
            self.look()


def test_on_a_terminal_it_explains_itself_edits_lines_and_forgives(tiny: Tiny) -> None:
    tiny.run()
    shown = greedily(load_model(str(tiny.folder / "runs" / "tiny"), device="cpu"), "12", 5).replace("\n", "\r\n")
    with Terminal(tiny.folder, "--max-new-tokens", "5", "--temperature", "0", "--threads", "1") as terminal:
        terminal.wait_for("> ")
        assert "Enter" in terminal.seen
        terminal.type("Zoo\n")
        terminal.wait_for("this line: ")
        terminal.wait_for("> ", times=2)
        terminal.type("13\x7f2\n")  # backspace
        terminal.wait_for(shown)
        terminal.type("\x1b[A\n")  # arrow up: the line before
        terminal.wait_for(shown, times=2)
        terminal.wait_for("> ", times=4)
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0


def test_ctrl_c_on_a_terminal_stops_the_text_which_can_then_go_on(tiny: Tiny) -> None:
    tiny.run()
    with Terminal(tiny.folder, "--max-new-tokens", "1000000", "--threads", "1") as terminal:
        terminal.wait_for("> ")
        terminal.seen = ""
        terminal.type("12\n")
        terminal.wait_for_text(100)
        terminal.type("\x03")
        terminal.wait_for("\n> ")
        terminal.type("\x03")  # which an empty prompt survives
        terminal.wait_for("\n> ", times=2)
        terminal.seen = ""
        terminal.type("\n")
        terminal.wait_for_text(100)
        terminal.type("\x03")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
        assert "Traceback" not in terminal.seen


def test_without_a_terminal_it_reads_lines_and_shows_nothing_but_text(tiny: Tiny) -> None:
    tiny.run()
    options = ("--interactive", "--max-new-tokens", "5", "--temperature", "0")
    finished = call(tiny.folder, "sample.py", "runs/tiny", *options, stdin=b"12\n\n")
    assert finished.code == 0, finished.err
    assert finished.err == ""
    assert finished.out.startswith("12")
    bad = call(tiny.folder, "sample.py", "runs/tiny", *options, stdin=b"12\n\xff\n")
    assert "line 2 of the input: is not UTF-8" in bad.error()
    assert bad.out.startswith("12")
    refused = call(tiny.folder, "sample.py", "runs/tiny", "--interactive", "--json", stdin=b"")
    assert "--interactive shows one text at a time" in refused.error()

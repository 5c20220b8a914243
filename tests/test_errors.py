"""The boundary of every command, tried in real processes, and the parser."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from errors import ArgumentParser, UserError, check_output, utf8_arguments

ROOT = Path(__file__).resolve().parents[1]
COMMAND = """
import os, signal, sys, time
from errors import ArgumentParser, UserError, run_command

def main(arguments):
    kind = arguments[0]
    if kind == "user error":
        raise UserError("setting x: got 3; use 1 or 2 \\u2014 \\u00e9")
    if kind == "fault":
        raise ValueError("ours")
    if kind == "file error":
        open("no such file")
    if kind == "interrupt":
        print("partly", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    if kind == "parser":
        parser = ArgumentParser(prog="x.py")
        parser.add_argument("--count", type=int)
        parser.parse_args(arguments[1:])
    if kind == "much":
        print("x" * 1_000_000)
    if kind == "little":
        print("x")
    if kind == "echo":
        print(arguments[1])
    return 0

run_command(main)
"""
PLACES = {
    "utf-8": {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "utf-8 mode": {"LC_ALL": "C", "PYTHONUTF8": "1"},
    "latin-1 output": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "latin-1"},
}


def start(*arguments: str | bytes, environment: dict[str, str] | None = None, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "", **(environment or {})},  # "": output waits in the buffer, as usual
        stderr=subprocess.PIPE,
        **options,
    )


def run(*arguments: str | bytes, environment: dict[str, str] | None = None) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr."""
    process = start(*arguments, environment=environment, stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_success_is_exit_code_0_and_silent():
    assert run("nothing") == (0, b"", b"")


def test_a_command_does_not_look_for_garbage_on_its_way_out():
    script = (
        "import gc\nfrom errors import run_command\n"
        "class Loud:\n    def __del__(self): print('collected', flush=True)\n"
        "def main(arguments):\n    loud = Loud()\n    loud.itself = loud\n    return 0\n"
        "gc.disable()\nrun_command(main)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.parametrize("place", PLACES)
def test_a_user_error_is_one_line_on_stderr_and_exit_code_2(place):
    expected = "error: setting x: got 3; use 1 or 2 — é\n".encode()
    assert run("user error", environment=PLACES[place]) == (2, b"", expected)


def test_a_fault_of_ours_keeps_its_traceback_with_exit_code_1():
    for kind, last in (("fault", b"ValueError: ours\n"), ("file error", b"'no such file'\n")):
        code, _, err = run(kind)
        assert code == 1
        assert err.startswith(b"Traceback")
        assert err.endswith(last)


def test_an_interrupt_is_exit_code_130_without_a_traceback():
    assert run("interrupt") == (130, b"partly\n", b"interrupted\n")


@pytest.mark.parametrize("kind", [["much"], ["little"], ["parser", "--help"]])
def test_a_reader_that_has_gone_away_ends_the_command_quietly(kind):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        process = start(*kind, stdout=pipe)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_stdout_is_one_line_and_exit_code_2():
    for kind in ("much", "little"):
        descriptor = os.open("/dev/full", os.O_WRONLY)
        with os.fdopen(descriptor, "wb") as full:
            process = start(kind, stdout=full)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert err.count(b"\n") == 1
        assert b"No space left" in err


def test_a_closed_stdout_is_no_fault():
    process = start("little", preexec_fn=lambda: os.close(1))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("place", PLACES)
def test_arguments_are_utf8_whatever_the_locale(place):
    text = "naïve – 你好 \U0001f600"
    assert run("echo", text.encode(), environment=PLACES[place]) == (0, f"{text}\n".encode(), b"")


@pytest.mark.parametrize("place", PLACES)
def test_bytes_on_the_command_line_that_are_not_utf8_are_one_line_and_exit_code_2(place):
    code, out, err = run("echo", b"caf\xe9", environment=PLACES[place])
    assert (code, out) == (2, b"")
    assert err.count(b"\n") == 1
    assert err.startswith(b"error: command line, argument 2: 'caf")
    assert b"is not UTF-8" in err


def test_the_parser_complains_in_one_line_with_exit_code_2():
    code, out, err = run("parser", "--count", "three")
    assert (code, out) == (2, b"")
    assert err == b"error: command line: argument --count: invalid int value: 'three'; see --help\n"


def test_the_parser_takes_no_abbreviations_and_stays_in_one_line():
    parser = ArgumentParser(prog="x.py")
    parser.add_argument("--count", type=int)
    for arguments in (["--coun", "3"], ["--count"], ["a\nb", "--other\r\nvalue"], ["--count", "1\n2"]):
        with pytest.raises(UserError, match=r"^command line: .*; see --help$") as error:
            parser.parse_args(arguments)
        assert len(str(error.value).splitlines()) == 1


def test_utf8_arguments_are_given_back_as_they_are():
    assert utf8_arguments(["a", "naïve", ""]) == ["a", "naïve", ""]


def test_a_result_needs_somewhere_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    check_output()
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(UserError, match="standard output is closed"):
        check_output()

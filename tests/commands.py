"""The commands as a user meets them: real processes, in a folder that is not the checkout."""

import contextlib
import json
import os
import re
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
SCRIPTS = ("train.py", "sample.py", "evaluate.py", "export.py", "visualize.py")
TINY_MODEL = ("model.d_model=16", "model.num_heads=2", "model.num_layers=2", "model.context_length=8")
TINY = (*TINY_MODEL, "train.batch_size=4", "optim.warmup_steps=2", "runtime.threads=1", "tracking.wandb=disabled")
# A locale that knows ASCII only, on a Python that goes by it.
ASCII_LOCALE = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
ENGLISH = "the quick brown fox jumps over the lazy dog, and the dog does not mind.\n" * 12


@dataclass(frozen=True)
class Finished:
    """What a process has left behind."""

    code: int
    out: str
    err: str

    def error(self) -> str:
        """The one line of a mistake that the user can put right."""
        assert self.code == 2, self
        lines = self.err.splitlines()
        assert "Traceback" not in self.err, self.err
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        return lines[-1]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what a developer may have set; warnings are errors here too."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "PYTHON", "COLUMNS"))}
    return {**ours, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **(extra or {})}


def start(
    cwd: Path, *arguments: object, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a script of ours (or, where none comes first, Python as told)."""
    words = [word if isinstance(word, bytes) else str(word) for word in arguments]
    if words[0] in SCRIPTS:
        words[0] = str(ROOT / str(words[0]))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, *words], cwd=cwd, env=environment(env), **pipes)


def wait_for_lines(process: subprocess.Popen[bytes], file: Path, number: int) -> None:
    """Until a run that is going has written so many lines."""
    deadline = time.monotonic() + 60
    while not (file.is_file() and file.read_bytes().count(b"\n") >= number):
        assert time.monotonic() < deadline
        assert process.poll() is None, finish(process)
        time.sleep(0.005)


def finish(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Finished:
    """Wait for the process; its output is UTF-8 whatever the locale."""
    out, err = process.communicate(stdin, timeout=120)
    return Finished(process.returncode, (out or b"").decode("utf-8"), (err or b"").decode("utf-8"))


def call(cwd: Path, *arguments: object, env: Mapping[str, str] | None = None, stdin: bytes | None = None) -> Finished:
    """Run a script of ours to its end."""
    options = {} if stdin is None else {"stdin": subprocess.PIPE}
    return finish(start(cwd, *arguments, env=env, **options), stdin)


def on_terminal(
    cwd: Path, *arguments: object, columns: int = 80, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """The exit code of a script of ours, and all that it has sent to a terminal of so many columns."""
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, columns))
    process = start(cwd, *arguments, env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = read_terminal(ours)
    return finish(process).code, shown


def read_terminal(ours: int) -> str:
    """All that is sent to a terminal until nobody holds its other end; closes ours."""
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way of saying that nobody holds it any more
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    return shown.decode("utf-8")


def succeed(cwd: Path, *arguments: object, **options: Any) -> Finished:
    """Run a script of ours, which is to end well."""
    finished = call(cwd, *arguments, **options)
    assert finished.code == 0, finished.err
    return finished


@contextlib.contextmanager
def two_at_a_time() -> Iterator[Callable[..., Future[Finished]]]:
    """Calls in the background, for the two cores that a small machine has; what is left at the end is dropped."""
    with ThreadPoolExecutor(2) as pool:
        yield lambda *arguments, **options: pool.submit(call, *arguments, **options)
        pool.shutdown(cancel_futures=True)


def pasted(line_start: str, text: str) -> str:
    """The command that stands in the output after `line_start`."""
    found = re.search(rf"^{line_start} +(.+)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def paste(cwd: Path, command: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run a command line in a shell, as a user would paste it."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=cwd, env=environment(env), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def metrics(run: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def without_speed(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics that two equal runs share."""
    return [{name: value for name, value in line.items() if not name.startswith("perf/")} for line in lines]


def steps(run: Path) -> list[int]:
    """The steps whose checkpoints are kept."""
    return sorted(int(path.stem.removeprefix("step_")) for path in (run / "checkpoints").iterdir())


def checkpoint_file(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:08d}.pt"


def read_checkpoint(run: Path, step: int) -> dict[str, Any]:
    """A checkpoint, by torch alone."""
    return dict(torch.load(checkpoint_file(run, step), weights_only=True))


def assert_equal_states(a: object, b: object, where: str = "") -> None:
    """Bit for bit, through dicts and lists, all but the time spent and the sizes of the files."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys(), where
        for key in a.keys() - {"seconds", "seconds_before_training", "file_sizes"}:
            assert_equal_states(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert isinstance(b, list)
        assert len(a) == len(b), where
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_equal_states(left, right, f"{where}[{index}]")
    else:
        assert a == b, f"{where}: {a!r} != {b!r}"

"""The README's commands, all of them, run as they stand there (with a tiny model and few steps)."""

import gzip
import io
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import ENGLISH, ROOT, TINY
from llama import Llama

import evaluate
import export
import sample
import train
import visualize

COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train.py": train.main,
    "sample.py": sample.main,
    "evaluate.py": evaluate.main,
    "export.py": export.main,
    "visualize.py": visualize.main,
}
# Run by CI; needing a terminal; several processes, which tests/test_processes.py starts.
NOT_HERE = ("pip install -r requirements-dev.txt", "wandb leet", "torchrun")
TINY_RUN = (*TINY, "train.max_steps=4", "train.eval_interval=2", "train.eval_tokens=64")
SAMPLE_LENGTH = ("--max-new-tokens", "20")
SHORT_STRIDE = ("--stride", "4")  # within the tiny model's window


def readme_commands() -> list[str]:
    """The lines of the README's shell blocks, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [re.sub(r"\s{2,}#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line.removeprefix("pip install -r requirements.txt && ") for line in lines if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place like the checkout, with the files that the README talks about."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "config").symlink_to(ROOT / "config")
    for name in ("novel.txt", "letters.txt", "other.txt", "input.txt", "names.txt", "books/1.txt", "chats/a/b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(ENGLISH, encoding="utf-8")
    with gzip.open(folder / "dump.txt.gz", "wt", encoding="utf-8") as dump:
        dump.write(ENGLISH)
    (folder / "start.txt").write_text("import ", encoding="utf-8")
    (folder / "prompts.txt").write_text("import \ndef \n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("line", readme_commands())
def test_a_command_of_the_readme_works(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if line.startswith(NOT_HERE):
        return
    monkeypatch.chdir(folder)
    if " | " in line:
        files, line = line.removeprefix("cat ").split(" | ")
        content = "".join((folder / name).read_text(encoding="utf-8") for name in files.split())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8"))
    words = shlex.split(line)
    assert words[0] == "python", f"a command that this test does not know: {line}"
    script, arguments = words[1], words[2:]
    if script == "train.py":
        arguments += ["train.max_steps=6"] if "--resume" in arguments else TINY_RUN
    elif script == "sample.py":
        arguments += SAMPLE_LENGTH
    elif "--stride" in arguments:
        arguments += SHORT_STRIDE
    if "--interactive" in arguments:
        monkeypatch.setattr("sys.stdin", io.StringIO("import \n\n"))
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            COMMANDS[script](arguments)
        assert "optim.learning_rate" in capfd.readouterr().out
        return
    assert COMMANDS[script](arguments) == 0
    assert capfd.readouterr().out or "--out" in arguments


def test_the_python_of_the_readme_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if not (folder / "runs" / "quickstart").exists():  # where none of the commands above has made it
        assert train.main(TINY_RUN) == 0
        capsys.readouterr()
    code, elsewhere = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    shown = capsys.readouterr().out
    assert shown.count("import ") >= 3
    assert shown.count("class ") >= 3
    if not (folder / "my_model").exists():
        assert export.main(["runs/quickstart", "--format", "hf", "--out", "my_model"]) == 0
    exec(elsewhere, {})
    out = capsys.readouterr().out
    assert out.startswith("def ")
    assert len(out) > len("def \n") + 20


def test_the_file_of_the_readmes_modelfile_runs_in_llama(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    monkeypatch.chdir(folder)
    (name,) = re.findall(r"^FROM \./(.+)$", readme, re.MULTILINE)
    assert f"llama-completion -m {name} " in readme
    if not Path(name).exists():
        if not (folder / "runs" / "quickstart").exists():
            assert train.main(TINY_RUN) == 0
        assert export.main(["runs/quickstart", "--format", "gguf", "--out", name]) == 0
    found = Llama(Path(name), 8).ask("completion", prompt="def", n_predict=3, temperature=0.8)
    assert found["tokens_predicted"] == 3

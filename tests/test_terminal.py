"""What people see: messages folded at a terminal's edge, and every line of every command on one of 80 columns."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import ENGLISH, ROOT, TINY, call, on_terminal

from terminal import NARROWEST, columns, cut, folded, tell, width_of

COMMAND = "python train.py --resume 'runs/my run' optim.learning_rate=0.001 train.max_steps=4000"


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("é", 1), ("e\N{COMBINING ACUTE ACCENT}", 1), ("明月", 4), ("🌙", 2), ("ｱ", 1), ("Ａ", 2)],
)
def test_wide_characters_take_two_columns_and_marks_none(text: str, width: int) -> None:
    assert columns(text) == width


def test_a_message_is_folded_between_words_and_goes_on_below_its_label() -> None:
    words = " ".join(["word"] * 20)
    assert folded(words, None) == words, "a log file has it in one line"
    assert folded(words, 99) == words
    assert folded(f"error: {words}", 44).splitlines() == [
        "error: word word word word word word word",
        *["    word word word word word word word word"],
        "    word word word word word",
    ]
    first, *others = folded(f"hint     {words}", 44).splitlines()
    assert first == "hint     word word word word word word word"
    assert {line[:10] for line in others} == {" " * 9 + "w"}
    assert folded(words, 3) == folded(words, NARROWEST)


def test_each_line_of_a_message_is_folded_by_itself() -> None:
    short, long = "train.x is unknown", "word " * 10 + "end"
    assert folded(f"{short}\n{long}\n{short}", 44).splitlines() == [short, "word " * 8 + "word", "    word end", short]


def test_wide_words_are_folded_by_the_columns_they_take() -> None:
    assert folded("明月照高楼 " * 6 + "end", 44).splitlines() == [
        "明月照高楼 " * 3 + "明月照高楼",
        "    明月照高楼 明月照高楼 end",
    ]


@pytest.mark.parametrize(
    "whole",
    [
        COMMAND,
        "/opt/venv/bin/python -m torch.distributed.run --standalone /home/me/gpt/train.py --resume runs/a",
        "torchrun --standalone --nproc-per-node 4 train.py --resume runs/quickstart",
        "pip install a-library-of-a-long-name another-library",
        "/home/me/a/very/long/path/to/a/text/that/has/no/spaces/in/it.txt",
        "'a name with spaces that is too long for a line.txt',",
        "data.source='a name with spaces that is too long for a line.txt',",
    ],
)
def test_commands_paths_and_names_in_quotation_marks_stay_whole(whole: str) -> None:
    lines = folded(f"error: something is not as it should be; you could try: {whole}", 44).splitlines()
    assert lines[-1] == f"    {whole}"
    assert max(map(len, lines[:-1])) <= 44


@pytest.mark.parametrize("after", [", or begin anew", "; that goes on from there", ") is best"])
def test_what_follows_a_command_is_folded_as_all_else(after: str) -> None:
    lines = folded(f"error: go on with ({COMMAND}{after} {'word ' * 10}", 44).splitlines()
    assert lines[1] == f"    ({COMMAND}{after.split()[0]}"
    assert max(map(len, [lines[0], *lines[2:]])) <= 44


def test_an_apostrophe_opens_no_quotation() -> None:
    lines = folded("error: the run's own settings are not those of the recipe, so the model's must go", 44).splitlines()
    assert max(map(len, lines)) <= 44


def test_text_is_cut_at_the_columns_it_takes() -> None:
    assert cut("abcde", 2) == ["ab", "cd", "e"]
    assert cut("a明月b", 3) == ["a明", "月b"]
    assert cut("明月", 1) == ["明", "月"]
    assert cut("", 5) == [""]


def test_where_there_is_no_stderr_a_message_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert width_of(sys.stderr) is None
    tell("to stderr")
    monkeypatch.setattr("sys.stderr", None)
    assert width_of(None) is None
    tell("to nobody")
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "to stderr\n")


def lines_of(shown: str) -> list[str]:
    """The lines that have stood on the terminal, those of a bar one after the other."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]


SETTINGS = (*TINY, "data.source=text.txt", "train.eval_interval=2", "train.log_interval=1")
SHORT = ("--max-new-tokens", "20", "--seed", "1")
COMMANDS: tuple[tuple[str, ...], ...] = (  # {} is the place that they show things on, and the name of its run
    ("./train.py", *SETTINGS, "train.max_steps=9", "name={}", "optim.warmup_steps=9", "data.newlines=keep"),
    ("./train.py", "--resume", "runs/{}", "train.max_steps=12", "optim.learning_rate=0.002"),
    ("./train.py", "--resume", "runs/{}"),
    ("./train.py", *SETTINGS, "train.init_from=runs/{}", "model.d_model=64", "--dry-run"),
    ("./sample.py", "runs/{}", *SHORT, "--out", "{}.json", "--json", "--stop", "ß", "--temperature", "0"),
    ("./sample.py", "runs/{}", *SHORT, "--prompt", "ß"),
    ("./evaluate.py", "runs/{}"),
    ("./evaluate.py", "runs/{}", "--text-file", "other.txt", "--skip-unknown"),
    ("./visualize.py", "runs/{}", "--text", "the quick brown fox", "--out", "{}.html"),
    ("./train.py", "--help"),
    ("./sample.py", "--help"),
    ("./evaluate.py", "--help"),
    ("./visualize.py", "--help"),
    ("./export.py", "runs/{}", "--format", "hf", "--out", "{}.hf"),
    ("./export.py", "runs/{}", "--format", "gguf", "--out", "{}.gguf"),
    ("./export.py", "--help"),
    ("-m", "data.prepare", "--help"),
    ("-m", "data.prepare", "data.source=[text.txt, other.txt]", "data.tokenizer=byte", "data.cache_dir={}"),
    ("-m", "data.prepare", "data.source=other.txt", f"data.sha256={'0' * 64}", "data.cache_dir={}"),
    ("./train.py", "train.maxsteps=4000", "optim.learning_rate=fast", "lr=3", "model.n_layer=3", "seed=x"),
    ("./train.py", "--resume", "runs/nothing"),
    ("./train.py", "--recipe", "x.yaml"),
)
PLAIN = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "TERM": "dumb", "NO_COLOR": "1"}  # `python` is ours

Shown = dict[str, str]  # by command


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the commands, so that those which are printed are as short as they are for people, and two texts."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder)
    for room in ("config", "data", "engine", "interop"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__", "cache"))
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    (folder / "other.txt").write_text("the dog ß", encoding="utf-8")
    return folder


def show_in_pipe(folder: Path, *arguments: str) -> str:
    finished = call(folder, *arguments, env=PLAIN)
    return finished.out + finished.err


def show_on_terminal(folder: Path, *arguments: str) -> str:
    return on_terminal(folder, *arguments, env=PLAIN)[1]


@pytest.fixture(scope="module")
def shown(checkout: Path) -> dict[str, Shown]:
    """What the commands show on a terminal of 80 columns and in a pipe, the two beside each other."""
    places = {"terminal": show_on_terminal, "pipe": show_in_pipe}

    def shown_on(place: str) -> Shown:
        lines = [[word.format(place) for word in words] for words in COMMANDS]
        return {" ".join(words): places[place](checkout, *words) for words in lines}

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(places, pool.map(shown_on, places), strict=True))


def test_no_line_is_wider_than_a_terminal_of_80_columns(shown: dict[str, Shown]) -> None:
    for command, text in shown["terminal"].items():
        assert lines_of(text), command
        assert [line for line in lines_of(text) if columns(line) > 80] == [], command


def test_in_a_pipe_only_messages_are_wider_and_these_are_one_line_each(shown: dict[str, Shown]) -> None:
    for command, text in shown["pipe"].items():
        state, _, _ = text.partition("error: ")
        wide = [line for line in state.splitlines() if columns(line) > 80 and not line.startswith("    | ")]
        assert [line for line in wide if not line.startswith(("hint  ", "note  "))] == [], command
        for line in (*wide, *text.removeprefix(state).splitlines()):
            on_screen = " ".join(" ".join(lines_of(shown["terminal"][command.replace("pipe", "terminal")])).split())
            assert " ".join(line.split()).replace("pipe", "terminal") in on_screen, "the same words, folded"


def test_nothing_moves_the_cursor_or_colours_where_that_is_not_wanted(shown: dict[str, Shown]) -> None:
    for place, texts in shown.items():
        for command, text in texts.items():
            assert "Traceback" not in text, text
            assert not re.search(r"[\x1b\x07\x08\x9b]", text), command
            assert place == "terminal" or "\r" not in text, command


def test_an_error_with_a_command_is_folded_on_a_terminal_but_for_the_command(checkout: Path) -> None:
    wild = ("optim.learning_rate=1e30", "optim.muon_learning_rate=1e30", "optim.grad_clip=null", "optim.warmup_steps=0")
    settings = (*SETTINGS, "runtime.precision=fp32", "train.max_steps=50", "name=wild", *wild)
    code, text = on_terminal(checkout, "./train.py", *settings, columns=60, env=PLAIN)
    assert code == 2, text
    lines = lines_of(text)
    error = lines[next(n for n, line in enumerate(lines) if line.startswith("error: step ")) :]
    (command,) = [line for line in error if columns(line) > 60]
    assert re.fullmatch(r"    python train\.py --resume runs/wild optim\.\S+=2\.5e\+29 optim\.\S+=2\.5e\+29", command)
    assert error[-1] == command
    assert len(error) > 3
    assert all(line.startswith("    ") for line in error[1:])

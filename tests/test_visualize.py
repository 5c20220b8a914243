"""visualize.py as a user meets it: a text in, a page out, and how it refuses."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ENGLISH, ROOT, TINY, Finished, call, environment, finish, succeed
from playwright.sync_api import Page

import visualize
from engine.inspection import MAX_TOKENS
from errors import UserError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on an English text."""
    folder = tmp_path_factory.mktemp("visualize")
    (folder / "text.txt").write_text(ENGLISH, encoding="utf-8")
    succeed(folder, "train.py", *TINY, "--quiet", "data.source=text.txt", "name=one", "train.max_steps=20")
    return folder


def test_it_writes_a_page_that_a_browser_opens(home: Path, page: Page) -> None:
    done = succeed(home, "visualize.py", "runs/one", "--text", "the dog does", "--out", "page.html")
    assert done.out == ""
    assert re.fullmatch(
        "12 tokens: attention is kept for the first 8\n"
        r"written to page.html \(0\.\d MB\); open it in a browser\n",
        done.err,
    )
    page.goto((home / "page.html").as_uri())
    assert page.inner_text("#text") == "the dog does"
    assert page.inner_text("#facts").startswith("one, step 20: qwen3, 2 layers, 2 heads, d_model 16, ")


def test_without_a_run_it_takes_the_newest_and_writes_to_stdout_where_asked(home: Path) -> None:
    done = succeed(home, "visualize.py", "--text", "the dog", "--out", "-")
    assert done.out.startswith("<!doctype html>")
    assert done.err == ""


def test_the_text_may_come_from_a_file_or_from_standard_input(home: Path) -> None:
    (home / "some.txt").write_bytes(b"\xef\xbb\xbfthe fox.\n")
    from_file = succeed(home, "visualize.py", "--text-file", "some.txt", "--out", "-")
    from_pipe = succeed(home, "visualize.py", "--text-file", "-", "--out", "-", stdin=b"the fox.\n")
    assert from_file.out == from_pipe.out
    assert from_file.out != succeed(home, "visualize.py", "--text", "the fox.", "--out", "-").out


def test_a_text_of_any_bytes_that_are_characters_is_shown_as_it_is(home: Path, page: Page) -> None:
    """A model of bytes knows every text: tags, what cannot be seen, and what no training text may hold."""
    hostile = "<script>hacked=1</script>😀 \u202eשלום\x00\x1b</script>"
    settings = ("data.source=text.txt", "data.tokenizer=byte", "train.max_steps=2", "name=bytes")
    succeed(home, "train.py", *TINY, *settings, "--quiet")
    (home / "hostile.txt").write_text(hostile, encoding="utf-8")
    succeed(home, "visualize.py", "runs/bytes", "--text-file", "hostile.txt", "--out", "hostile.html")
    shutil.rmtree(home / "runs" / "bytes")  # one is the newest again
    page.goto((home / "hostile.html").as_uri())
    assert page.evaluate("typeof hacked") == "undefined"
    invisible = {character: f"U+{ord(character):04X}" for character in "\u202e\x00\x1b"}
    shown = "".join(page.locator("#text > span").all_text_contents())
    assert shown == "".join(invisible.get(character, character) for character in hostile)


def test_the_same_text_gives_the_same_page(home: Path) -> None:
    pages = [succeed(home, "visualize.py", "--text", "jumps over", "--out", "-").out for _ in range(2)]
    assert pages[0] == pages[1]


def test_a_page_of_a_long_text_is_bounded_and_says_so(home: Path) -> None:
    text = (ENGLISH * 20)[: MAX_TOKENS + 5]
    assert len(text) == MAX_TOKENS + 5
    done = succeed(home, "visualize.py", "--text-file", "-", "--out", "long.html", stdin=text.encode())
    assert done.err.startswith("10,005 tokens: the first 10,000 are shown, attention is kept for the first 8\n")
    longer = succeed(home, "visualize.py", "--text-file", "-", "--out", "longer.html", stdin=(text * 3).encode())
    assert longer.err.startswith("30,015 tokens: the first 10,000 are shown")
    sizes = [(home / name).stat().st_size for name in ("long.html", "longer.html")]
    assert abs(sizes[0] - sizes[1]) < 100


def test_what_the_model_does_not_know_is_refused_or_left_out(home: Path) -> None:
    refused = call(home, "visualize.py", "--text", "the Über", "--out", "x.html")
    assert refused.error().startswith("error: --text: ")
    assert refused.error().endswith("; or --skip-unknown")
    assert not (home / "x.html").exists()
    done = succeed(home, "visualize.py", "--text", "the Über", "--skip-unknown", "--out", "-")
    assert done.err == "--text: skipped 'Ü'\n"
    nothing = call(home, "visualize.py", "--text", "ÜÄÖ", "--skip-unknown", "--out", "x.html")
    assert nothing.error() == "error: --text: the model knows none of its characters; give it others"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "", "--out", "x.html"], "--text: the text is empty; give at least one character"),
        (["--text-file", "empty.txt", "--out", "x.html"], "--text-file empty.txt: the text is empty"),
        (["--text", "the"], "the following arguments are required: --out"),
        (["--out", "x.html"], "one of the arguments --text --text-file is required"),
        (["--text", "the", "--text-file", "f", "--out", "x"], "not allowed with argument"),
        (["--text", "the", "--out", "none/x.html"], "--out none/x.html: there is no folder none; make it first"),
        (["--text", "the", "--out", "runs"], "--out runs: this is a folder; name a file in it"),
        (["--text-file", "text.txt", "--out", "text.txt"], "--out text.txt: this is the --text-file; name another"),
        (["--text-file", "nothing.txt", "--out", "x.html"], "nothing.txt"),
        (["runs/two", "--text", "the", "--out", "x.html"], "runs/two"),
        (["--text", "the", "--out", "x.html", "--checkpoint", "step_9.pt"], "no such file"),
    ],
)
def test_a_mistake_costs_one_line_and_no_file(
    home: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "empty.txt").write_bytes(b"")
    before = (home / "text.txt").read_bytes()
    with pytest.raises(UserError) as error:
        visualize.main(arguments)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not (home / "x.html").exists()
    assert (home / "text.txt").read_bytes() == before


def test_a_model_of_lines_reads_a_text_of_lines(home: Path, page: Page) -> None:
    settings = ("data.source=text.txt", "data.documents=line", "train.max_steps=2", "name=lines")
    succeed(home, "train.py", *TINY, *settings, "--quiet")
    (home / "lines.txt").write_text("the fox\n\ndog\n", encoding="utf-8")
    done = succeed(home, "visualize.py", "runs/lines", "--text-file", "lines.txt", "--out", "lines.html")
    shutil.rmtree(home / "runs" / "lines")  # one is the newest again
    assert done.err.startswith("12 tokens: ")
    page.goto((home / "lines.html").as_uri())
    assert page.inner_text("#text").split() == ["the", "fox↵", "dog↵"]
    page.locator('#text > span[data-unit="7"]').click()
    assert page.inner_text("#next-lead") == "After end of text at position 7 the model expects:"


def test_the_numbers_are_worked_out_in_32_bits_whatever_the_precision(home: Path, page: Page) -> None:
    succeed(home, "visualize.py", "--text", "the dog", "--precision", "bf16", "--out", "bf16.html")
    page.goto((home / "bf16.html").as_uri())
    rows = [row.split("\t") for row in page.locator("#scores tbody tr").all_inner_texts()]
    powers = [float(row[4]) for row in rows]
    for row, power in zip(rows, powers, strict=True):
        assert abs(float(row[5]) - power / sum(powers)) < 2e-4


def test_the_model_is_not_written_over(home: Path) -> None:
    checkpoint = next((home / "runs" / "one" / "checkpoints").glob("*.pt"))
    shutil.copy(checkpoint, home / "copied.pt")
    refused = call(home, "visualize.py", "copied.pt", "--text", "the", "--out", "copied.pt")
    assert refused.error() == "error: --out copied.pt: this is the model (RUN); name another place"
    refused = call(home, "visualize.py", "--text", "the", "--out", f"runs/one/checkpoints/{checkpoint.name}")
    assert refused.error().endswith(": this belongs to the run " + str(home / "runs" / "one") + "; name another place")
    assert (home / "copied.pt").read_bytes() == checkpoint.read_bytes()


def test_a_page_that_cannot_be_written_leaves_the_old_one(home: Path) -> None:
    (home / "kept.html").write_text("old", encoding="utf-8")
    done = in_shell(home, 'ulimit -f 8; exec "$@"', "--text", "the dog", "--out", "kept.html")
    assert "kept.html: could not be written" in done.error()
    assert (home / "kept.html").read_text(encoding="utf-8") == "old"
    assert [path.name for path in home.glob(".*")] == []


def test_a_closed_standard_output_is_said(home: Path) -> None:
    assert "standard output is closed" in in_shell(home, 'exec "$@" >&-', "--text", "the", "--out", "-").error()


def in_shell(home: Path, script: str, *arguments: str) -> Finished:
    """Run the command as a shell script says."""
    words = ["sh", "-c", script, "sh", sys.executable, str(ROOT / "visualize.py"), *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return finish(subprocess.Popen(words, cwd=home, env=environment(), **pipes))

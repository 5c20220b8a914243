"""docs/attention.md: its code prints what the page shows, and ends where `model.py` begins."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from commands import ENGLISH, ROOT, TINY, succeed
from playwright.sync_api import Browser

PAGE = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```python\n(.*?)^```\n^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
NUMBER = r"(?<![\d.])\d+\.\d\d(?!\d)"


@contextmanager
def torch_left_as_it_was() -> Iterator[None]:
    """The page seeds torch and tells it how to print."""
    with torch.random.fork_rng():
        yield
    torch.set_printoptions(profile="default")


def printed(blocks: list[str]) -> list[str]:
    """What each block prints, run in the order of the page, each after those before."""
    namespace: dict[str, object] = {}
    outputs = []
    with torch_left_as_it_was():
        for code in blocks:
            with redirect_stdout(StringIO()) as output:
                exec(code, namespace)
            outputs.append(output.getvalue())
    return outputs


@pytest.fixture(scope="module")
def outputs() -> list[str]:
    return printed([code for code, _ in BLOCKS])


def test_every_block_of_code_is_followed_by_what_it_prints() -> None:
    assert len(BLOCKS) == PAGE.count("```python") == PAGE.count("```text") > 10
    assert all(shown for _, shown in BLOCKS)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_a_block_prints_what_the_page_shows(block: int, outputs: list[str]) -> None:
    assert outputs[block] == BLOCKS[block][1]


def test_the_page_ends_equal_to_the_model(outputs: list[str]) -> None:
    assert outputs[-1] == "equal to model.py\n"


def test_no_number_is_about_to_be_rounded_the_other_way() -> None:
    """Another machine adds in another order; the page must show the same."""
    exact = [code.replace("precision=2", "precision=6").replace(":.2f}", ":.6f}") for code, _ in BLOCKS]
    numbers = re.findall(r"\d+\.\d{6}", "".join(printed(exact)))
    assert len(numbers) > 100
    for number in numbers:
        assert not 0.499 < float(number) * 100 % 1 < 0.501, number


def test_the_numbers_that_the_text_speaks_of_are_printed() -> None:
    spoken_of = set(re.findall(NUMBER, PROSE))
    assert spoken_of
    assert spoken_of <= set(re.findall(NUMBER, "".join(shown for _, shown in BLOCKS)))


def test_a_block_is_small_enough_to_be_taken_in_at_once() -> None:
    for code, _ in BLOCKS:
        lines = code.splitlines()
        assert len(lines) <= 12, code
        assert max(map(len, lines)) <= 100, code
    assert max(map(len, PROSE.splitlines())) <= 120


def test_the_names_that_the_page_points_to_are_there() -> None:
    pointers = re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", PROSE)
    in_model = [row.split("|")[2] for row in PROSE.splitlines() if row.startswith("| `")]
    pointers += [(name, "model.py") for cell in in_model for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(pointers) > 5
    for name, file in pointers:
        source = (ROOT / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"\b(?:def |class |self\.){part}\b", source), f"{name} in {file}"


def test_the_pictures_can_be_taken_anew(tmp_path: Path, browser: Browser) -> None:
    """By the script that took them; `browser` is asked for so that the test is skipped where there is none."""
    (tmp_path / "text.txt").write_text(ENGLISH, encoding="utf-8")
    settings = ("data.source=text.txt", "data.tokenizer=byte", "train.max_steps=8", "train.eval_interval=1", "name=a")
    succeed(tmp_path, "train.py", *TINY, *settings, "--quiet", "tracking.tensorboard=true")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    lenient = {"PYTHONWARNINGS": ""}  # TensorBoard warns
    succeed(tmp_path, ROOT / "docs" / "screenshots.py", "--run", "runs/a", "--out", "pictures", env=lenient)
    for name in ("page.png", "tensorboard.png"):
        picture = (pictures / name).read_bytes()
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(picture) > 20_000
        assert picture[16:24] == (ROOT / "docs" / name).read_bytes()[16:24]  # as wide and as high
        assert f"(docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")

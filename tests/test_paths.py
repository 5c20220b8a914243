"""Names of files and sizes, as people read and write them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.paths import counted, format_size, local_path, one_line, path_name, shown_path


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_999, "1.0 MB"),
        (5 * 10**9, "5.0 GB"),
        (10**13, "10.0 TB"),
    ],
)
def test_sizes_are_readable(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


def test_the_tilde_of_a_user_that_there_is_not_is_part_of_a_name_like_any_other() -> None:
    assert local_path("~nobody-of-this-name/a.txt") == Path("~nobody-of-this-name/a.txt")
    assert local_path("~/a.txt") == Path.home() / "a.txt"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_name_is_shown_as_it_was_written_in_any_locale(locale: str) -> None:
    program = (
        "import sys; from data.paths import local_path, shown_path\n"
        "name = 'na\\u00efve \\U0001f642.txt'\n"
        "print(ascii(shown_path(local_path(name)) == name))"
    )
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": locale}
    command = [sys.executable, "-c", program]
    root = Path(__file__).parent.parent
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere names are no bytes")
def test_bytes_of_a_name_that_are_not_utf8_are_escaped() -> None:
    assert shown_path(Path(os.fsdecode(b"caf\xe9.txt"))) == "caf\\xe9.txt"


@pytest.mark.parametrize("character", [chr(code) for code in (*range(32), 0x7F, 0x85, 0x9B, 0x2028, 0x2029)])
def test_no_name_and_no_foreign_message_ends_a_line_or_drives_the_terminal(character: str) -> None:
    name = f"a{character}b.txt"
    assert shown_path(Path(name)) == f"a{repr(character)[1:-1]}b.txt"
    assert path_name(Path(name)) == name
    assert len(one_line(f"\na\n  {name}{character}\n").splitlines()) == 1
    assert one_line("no\n  such\tfile\n") == "no such file"


def test_one_thing_is_not_called_many() -> None:
    assert [counted(number, "file") for number in (0, 1, 1000)] == ["0 files", "1 file", "1,000 files"]
    assert counted(2, "query", "queries") == "2 queries"

import os
import socket
from pathlib import Path

import pytest

from data.folders import Search, Skip, Skipped, has_pattern, identity

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs the file names, links and pipes of POSIX")


def tree(folder: Path, *names: str) -> Path:
    """A folder with these files in it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def search_in(folder: Path) -> Search:
    return Search(folder / "cache", lambda path: path.relative_to(folder).as_posix(), Skipped())


def below(folder: Path) -> tuple[list[str], dict[Skip, list[str]]]:
    search = search_in(folder)
    names = [path.relative_to(folder).as_posix() for path in search.files_below(folder)]
    return names, {why: list(names) for why, names in search.skipped.names.items()}


def matching(folder: Path, pattern: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in search_in(folder).matches(folder / pattern)]


def test_files_come_sorted_by_the_bytes_of_their_parts(tmp_path: Path) -> None:
    names = ["B.txt", "a/b.txt", "a/ä.txt", "a-.txt", "a.txt", "a0.txt", "b.txt", "é.txt", "你.txt", "🙂.txt"]
    assert below(tree(tmp_path, *reversed(names))) == (names, {})


def test_hidden_files_and_folders_are_not_seen(tmp_path: Path) -> None:
    assert below(tree(tmp_path, ".git/config", ".hidden", "a.txt", "b/.c", "b/d/.e/f")) == (["a.txt"], {})


def test_the_cache_and_the_folders_of_runs_are_left_out(tmp_path: Path) -> None:
    tree(
        tmp_path, "a.txt", "cache/stdin/b.txt", "runs/x/config.yaml", "runs/x/checkpoints/step.pt", "runs/x/samples.txt"
    )
    tree(tmp_path, "config.yaml", "no/config.yaml", "neither/checkpoints/c.txt")
    names, skipped = below(tmp_path)
    assert names == ["a.txt", "config.yaml", "neither/checkpoints/c.txt", "no/config.yaml"]
    assert skipped == {Skip.CACHE: ["cache"], Skip.RUN: ["runs/x"]}
    assert matching(tmp_path, "**/*.txt") == ["a.txt", "neither/checkpoints/c.txt"]
    assert matching(tmp_path, "*/*/*.txt") == ["neither/checkpoints/c.txt"]
    assert search_in(tmp_path).excluded(tmp_path / "runs/x") == Skip.RUN
    assert search_in(tmp_path).excluded(tmp_path / "no") is None


@POSIX
def test_links_to_files_are_followed_and_those_to_folders_are_not(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt", "b/c.txt")
    (tmp_path / "b" / "link.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "b" / "broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "b" / "round").symlink_to(tmp_path / "b" / "round")
    names, skipped = below(tmp_path)
    assert names == ["a.txt", "b/c.txt", "b/link.txt"]
    assert {why: sorted(names) for why, names in skipped.items()} == {
        Skip.LINKED: ["b/up"],
        Skip.BROKEN: ["b/broken", "b/round"],
    }
    assert matching(tmp_path, "**/*.txt") == names
    assert matching(tmp_path, "b/*/a.txt") == []
    assert matching(tmp_path, "b/up/*.txt") == ["b/up/a.txt"]


@POSIX
def test_pipes_and_sockets_are_skipped_and_never_opened(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        names, skipped = below(tmp_path)
    assert names == ["a.txt"]
    assert {why: sorted(names) for why, names in skipped.items()} == {Skip.SPECIAL: ["pipe", "socket"]}


@POSIX
def test_names_that_are_not_utf8_are_files_like_any_other(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in search_in(tmp_path).matches(tmp_path / "*.txt")] == [name]


def test_deep_folders_are_walked_through(tmp_path: Path) -> None:
    deep = "/".join("d" * 200)
    assert below(tree(tmp_path, f"{deep}/a.txt"))[0] == [f"{deep}/a.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "b.txt"]),
        ("[ab].txt", ["a.txt", "b.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("*", ["a.txt", "b.txt", "c.md", "d/e.txt", "d/f/g.txt"]),
        ("d*", ["d/e.txt", "d/f/g.txt"]),
        ("*/*.txt", ["d/e.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "d/e.txt", "d/f/g.txt"]),
        ("**", ["a.txt", "b.txt", "c.md", "d/e.txt", "d/f/g.txt"]),
        ("d/**/*.txt", ["d/e.txt", "d/f/g.txt"]),
        ("**/f/**/*", ["d/f/g.txt"]),
        ("**/**/g.*", ["d/f/g.txt"]),
        (".*", [".h.txt"]),
        ("*.html", []),
        ("nowhere/*", []),
        ("a.txt/*", []),
    ],
)
def test_patterns_match_as_in_a_shell_and_their_folders_are_walked_through(
    tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    tree(tmp_path, "a.txt", "b.txt", "c.md", "d/e.txt", "d/f/g.txt", ".h.txt")
    assert matching(tmp_path, pattern) == expected


@POSIX
def test_a_part_that_exists_as_it_is_written_is_no_pattern(tmp_path: Path) -> None:
    tree(tmp_path, "my [1]/a.txt", "my 1/b.txt", "*.md", "c.md")
    assert matching(tmp_path, "my [1]/*.txt") == ["my [1]/a.txt"]
    assert matching(tmp_path, "*.md") == ["*.md"]


def test_what_makes_a_pattern() -> None:
    assert [name for name in ("a", "a*", "a?", "[a]", "a]") if has_pattern(name)] == ["a*", "a?", "[a]"]


@POSIX
def test_names_of_one_file_have_one_identity(tmp_path: Path) -> None:
    tree(tmp_path, "a", "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "hard").hardlink_to(tmp_path / "a")
    assert identity(tmp_path / "a") == identity(tmp_path / "link") == identity(tmp_path / "hard")
    assert identity(tmp_path / "a") != identity(tmp_path / "b")


def test_what_is_skipped_is_told_in_one_line_for_each_reason() -> None:
    lines: list[str] = []
    skipped = Skipped()
    for number in range(1234):
        skipped.add(Skip.BINARY, f"{number}.png")
    skipped.add(Skip.EMPTY, "a.txt")
    skipped.add(Skip.EMPTY, "a.txt")
    skipped.tell(lines.append, "data.val_source")
    assert lines == [
        "data.val_source: skipped 1,234 binary files: 0.png, 1.png, 2.png, …",
        "data.val_source: skipped 1 empty file: a.txt",
    ]

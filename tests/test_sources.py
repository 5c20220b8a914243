import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from config.schema import DataConfig
from data.download import download
from data.recognize import SAMPLE_BYTES
from data.sources import (
    Source,
    file_source,
    list_sources,
    read_head,
    resolve_sources,
    stdlib_sources,
)
from data.text import read_text
from errors import DataError

ROOT = Path(__file__).parent.parent


def file_of(folder: Path, content: bytes, name: str = "text.txt") -> Source:
    path = folder / name
    path.write_bytes(content)
    return file_source(str(path))


def resolve(*names: str, **options: Any) -> tuple[list[Source], list[str]]:
    lines: list[str] = []
    source = names[0] if len(names) == 1 else list(names)
    config = DataConfig(source=source, **{"cache_dir": "unused", **options})
    return resolve_sources(config, report=lines.append).train, lines


def named(sources: list[Source], folder: Path) -> list[str]:
    return [source.path.relative_to(folder).as_posix() for source in sources]


def tree(folder: Path, **contents: bytes) -> Path:
    """A folder of files; in their names __ stands for a dot."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def test_a_file_is_one_source_with_its_name_and_size(tmp_path: Path) -> None:
    path = tmp_path / "naïve — 你好 🙂.txt"
    path.write_text("你好", encoding="utf-8")
    assert resolve(str(path)) == ([Source(str(path), path, 6)], [])


def test_files_of_a_list_keep_their_order(tmp_path: Path) -> None:
    names = [file_of(tmp_path, b"x", name).name for name in ("b.txt", "a.txt", "c.txt")]
    assert [source.name for source in resolve(*names)[0]] == names


def test_stdlib_is_the_sorted_modules_of_the_librarys_top_folder() -> None:
    sources, _ = resolve("stdlib")
    names = [source.path.name for source in sources]
    assert {source.path.parent for source in sources} == {Path(sysconfig.get_path("stdlib"))}
    assert {"abc.py", "zipfile.py" if sys.version_info < (3, 12) else "zipimport.py"} <= set(names)
    assert names == sorted(names)
    assert sum(len("".join(read_text(source, encoding="cp1252"))) for source in sources) > 1_000_000


def test_a_python_without_library_sources_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source=stdlib.*data\.source=FILE"):
        stdlib_sources(tmp_path)


def test_a_missing_file_gets_the_nearest_name_of_its_folder(tmp_path: Path) -> None:
    file_of(tmp_path, b"x", "shakespeare.txt")
    with pytest.raises(DataError, match=r"there is no file '.*/shakespear\.txt'; did you mean '.*/shakespeare\.txt'"):
        resolve(str(tmp_path / "shakespear.txt"))
    with pytest.raises(DataError, match="there is no file"):
        resolve(str(tmp_path / "zzz"))
    with pytest.raises(DataError, match=r"no folder '.*nowhere' either"):
        resolve(str(tmp_path / "nowhere" / "a.txt"))


def test_a_broken_link_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"'.*/dangling' is a broken link to 'nowhere'; name the file itself$"):
        resolve(str(tmp_path / "dangling"))


def test_of_a_copy_of_standard_input_that_is_gone_it_is_said_what_it_was(tmp_path: Path) -> None:
    for name in ("a" * 64 + ".txt", "A" * 64 + ".txt", "a" * 63 + ".txt"):
        with pytest.raises(DataError) as error:
            resolve(str(tmp_path / "stdin" / name))
        is_one = name == "a" * 64 + ".txt"
        advice = "came from standard input and its copy is gone; pipe it in again with data.source=-"
        assert (advice in str(error.value)) == is_one


def test_a_name_that_would_break_a_line_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\nb.txt").write_bytes(b"text")
    (tmp_path / "empty\x1b.txt").write_bytes(b"")
    for names in ([str(tmp_path)], [str(tmp_path / "a\nb.txt"), str(tmp_path / "empty\x1b.txt")]):
        sources, lines = resolve(*names)
        list_sources(sources, lines.append)
        assert [source.name for source in sources] == [f"{tmp_path}/a\\nb.txt"]
        assert lines == [f"data.source: skipped 1 empty file: {tmp_path}/empty\\x1b.txt", lines[1]]
        assert lines[1].endswith(r"a\nb.txt: 4 bytes")
    assert resolve_sources(DataConfig(source=str(tmp_path / "a\nb.txt")), report=print).title.endswith(r"a\nb.txt")


def test_a_file_on_the_way_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    file_of(tmp_path, b"x", "a.txt")
    with pytest.raises(DataError, match=r"cannot read .*Not a directory"):
        resolve(str(tmp_path / "a.txt" / "b.txt"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_a_text_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        resolve(str(tmp_path / "pipe"))


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \r\n\t\n", gzip.compress(b" \n"), " \n".encode("utf-16")])
def test_an_empty_file_is_an_error_alone_and_skipped_with_a_notice_among_others(tmp_path: Path, content: bytes) -> None:
    empty = file_of(tmp_path, content, "empty.txt")
    full = file_of(tmp_path, b"x", "full.txt")
    with pytest.raises(DataError, match=r"empty\.txt' is empty"):
        resolve(empty.name)
    assert resolve(empty.name, full.name) == ([full], [f"data.source: skipped 1 empty file: {empty.name}"])
    other = file_of(tmp_path, content, "other.txt")
    with pytest.raises(DataError, match="all of the files are empty"):
        resolve(empty.name, other.name)


def test_a_folder_is_all_text_in_it_chosen_by_content(tmp_path: Path) -> None:
    tree(tmp_path, b__txt=b"b", a=b"a", c__png=b"\x89PNG\r\n\x1a\n\0\0\0\r", d__gz=gzip.compress(b"d"), e__md=b" \n")
    tree(tmp_path / "f", g__tgz=gzip.compress(b"\0" * 9), h__txt="h你".encode("utf-16"), i__pdf=b"%PDF-1.4\n")
    sources, lines = resolve(str(tmp_path))
    assert named(sources, tmp_path) == ["a", "b.txt", "d.gz", "f/h.txt"]
    assert sources[0] == Source(str(tmp_path / "a"), tmp_path / "a", 1)
    where = f"{tmp_path}/"
    assert lines == [
        f"data.source: skipped 3 binary files: {where}c.png, {where}f/g.tgz, {where}f/i.pdf",
        f"data.source: skipped 1 empty file: {where}e.md",
    ]


def test_a_pattern_is_the_text_that_it_matches(tmp_path: Path) -> None:
    tree(tmp_path, b__txt=b"b", a__txt=b"a", c__md=b"c", d__txt=b"\0")
    tree(tmp_path / "sub", e__txt=b"e")
    assert named(resolve(f"{tmp_path}/*.txt")[0], tmp_path) == ["a.txt", "b.txt"]
    assert named(resolve(f"{tmp_path}/**/*.txt")[0], tmp_path) == ["a.txt", "b.txt", "sub/e.txt"]
    assert named(resolve(f"{tmp_path}/s*")[0], tmp_path) == ["sub/e.txt"]
    file_of(tmp_path, b"literal", "[ab].txt")
    assert named(resolve(f"{tmp_path}/[ab].txt")[0], tmp_path) == ["[ab].txt"]


@pytest.mark.parametrize("setting", ["source", "val_source"])
def test_what_gives_no_text_is_one_line_with_its_setting_and_what_to_do(tmp_path: Path, setting: str) -> None:
    tree(tmp_path / "binary", a=b"\0", b=b"\0\1")
    tree(tmp_path / "hidden", __a=b"a")
    (tmp_path / "cache").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_bytes(b"x")
    text = file_of(tmp_path, b"text")
    for name, message in {
        f"{tmp_path}/*.html": "no file matches '.*'; check the name .*hidden files do not count",
        str(tmp_path / "hidden"): "there is no file in the folder '.*hidden'",
        str(tmp_path / "binary"): "none of the 2 files holds text",
        str(tmp_path / "run"): "is a folder of a run; name a folder or file of your own text",
        str(tmp_path / "cache"): r"is a folder that is data\.cache_dir",
        str(tmp_path / "missing"): "there is no file",
        "ftp://example.org/a": "http and https",
    }.items():
        with pytest.raises(DataError, match=rf"^data\.{setting}: .*{message}") as error:
            resolve_sources(
                DataConfig(**{"source": text.name, "cache_dir": str(tmp_path / "cache"), setting: name}),
                report=lambda line: None,
            )
        assert "\n" not in str(error.value)


def test_what_was_skipped_explains_an_error(tmp_path: Path) -> None:
    lines: list[str] = []
    tree(tmp_path, a=b"\0", b=b"\0")
    with pytest.raises(DataError):
        resolve_sources(DataConfig(source=str(tmp_path)), report=lines.append)
    assert lines == [f"data.source: skipped 2 binary files: {tmp_path}/a, {tmp_path}/b"]


def test_training_does_not_read_what_it_has_written(tmp_path: Path) -> None:
    tree(tmp_path, text__txt=b"text")
    tree(tmp_path / "cache", tokenizer__json=b"{}")
    for run in ("one", "two"):
        (tmp_path / "runs" / run / "checkpoints").mkdir(parents=True)
        tree(tmp_path / "runs" / run, config__yaml=b"x", samples__txt=b"x")
    sources, lines = resolve(str(tmp_path), cache_dir=str(tmp_path / "cache"))
    assert named(sources, tmp_path) == ["text.txt"]
    assert len(lines) == 2
    assert f"data.source: skipped 1 folder that is data.cache_dir: {tmp_path}/cache" in lines
    assert any(line.startswith("data.source: skipped 2 folders of runs: ") for line in lines)


def test_text_in_another_encoding_is_kept_so_that_reading_it_fails(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"plain", b__txt=b"caf\xe9")
    sources, _ = resolve(str(tmp_path))
    with pytest.raises(DataError, match=r"b\.txt: byte 3 .*is 0xe9.*data\.encoding=cp1252"):
        [*read_text(sources[0]), *read_text(sources[1])]


def test_a_binary_file_that_is_named_itself_is_kept_so_that_reading_it_fails(tmp_path: Path) -> None:
    (source,), lines = resolve(file_of(tmp_path, b"a\0b").name)
    assert lines == []
    with pytest.raises(DataError, match=r"byte 1 .* this is binary data"):
        list(read_text(source))


def test_utf8_that_is_read_in_another_encoding_is_warned_about(tmp_path: Path) -> None:
    tree(tmp_path, a__txt="naïve".encode(), b__txt="café".encode(), c__txt=b"plain", d__txt="café".encode("cp1252"))
    _, lines = resolve(str(tmp_path), encoding="latin-1")
    assert lines == [
        f"data.source: {tmp_path}/a.txt (and 1 more) seems to be UTF-8, but is read as latin-1; if its characters come "
        "out wrong, use data.encoding=utf-8"
    ]
    assert resolve(str(tmp_path))[1] == []


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"a", b__txt=b"b")
    a, b = (str(tmp_path / name) for name in ("a.txt", "b.txt"))
    sources, lines = resolve(b, str(tmp_path), a, f"{tmp_path}/*.txt", f"{tmp_path}/./b.txt")
    assert named(sources, tmp_path) == ["b.txt", "a.txt"]
    assert len(lines) == 1
    assert lines[0].startswith("data.source: skipped 3 files that are named twice: ")


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_and_its_file_are_read_once(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"a")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    sources, lines = resolve(str(tmp_path))
    assert named(sources, tmp_path) == ["a.txt"]
    assert lines == [f"data.source: skipped 1 file that is named twice: {tmp_path}/b.txt"]


def test_a_val_source_is_resolved_like_source(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"a", b__txt=b"b", c__png=b"\0")
    train, val = f"{tmp_path}/a.txt", [f"{tmp_path}/b*", f"{tmp_path}/c*"]
    lines: list[str] = []
    found = resolve_sources(DataConfig(source=train, val_source=val), report=lines.append)
    assert named(found.train, tmp_path) == ["a.txt"]
    assert named(found.val, tmp_path) == ["b.txt"]
    assert (found.val[0].setting, found.source, found.val_source) == ("data.val_source", train, val)
    assert lines == [f"data.val_source: skipped 1 binary file: {tmp_path}/c.png"]
    alone = resolve_sources(DataConfig(source=train), report=lines.append)
    assert (alone.val, alone.val_source) == ([], None)


def test_a_text_that_is_both_trained_on_and_measured_on_is_told(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"a", b__txt=b"b")
    lines: list[str] = []
    resolve_sources(DataConfig(source=str(tmp_path), val_source=f"{tmp_path}/b.txt"), report=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith(f"data.val_source: {tmp_path}/b.txt belongs to data.source too; ")


def resolve_piped(content: bytes, *settings: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import json; from errors import command_boundary\n"
        "with command_boundary() as arguments:\n"
        "    from config.load import load_config\n"
        "    from data.sources import resolve_sources\n"
        "    found = resolve_sources(load_config(None, arguments).data, report=print)\n"
        "    names = [[source.name, source.path.read_text()] for source in found.train + found.val]\n"
        "    print(json.dumps([names, found.source, found.val_source]))"
    )
    command = [sys.executable, "-c", program, *settings]
    result = subprocess.run(command, cwd=ROOT, input=content, capture_output=True, check=False)
    return subprocess.CompletedProcess(command, result.returncode, result.stdout.decode(), result.stderr.decode())


def test_standard_input_becomes_a_file_that_the_settings_name(tmp_path: Path) -> None:
    text = file_of(tmp_path, b"other").name
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    kept = str(tmp_path / "cache" / "stdin" / f"{hashlib.sha256(b'piped').hexdigest()}.txt")
    alone = json.loads(resolve_piped(b"piped", cache, "data.source=-").stdout)
    assert alone == [[["standard input", "piped"]], kept, None]
    listed = json.loads(resolve_piped(b"piped", cache, f"data.source=[-, {text}]").stdout)
    assert listed == [[["standard input", "piped"], [text, "other"]], [kept, text], None]
    val = json.loads(resolve_piped(b"piped", cache, f"data.source={text}", "data.val_source=-").stdout)
    assert val == [[[text, "other"], ["standard input", "piped"]], text, kept]
    assert [source.path.read_bytes() for source in resolve(kept)[0]] == [b"piped"]


@pytest.mark.parametrize("settings", [("data.source=[-, -]",), ("data.source=-", "data.val_source=-")])
def test_standard_input_cannot_be_two_texts(tmp_path: Path, settings: tuple[str, ...]) -> None:
    result = resolve_piped(b"piped", f"data.cache_dir={tmp_path}", *settings)
    assert result.returncode == 2
    assert "- is there 2 times, but standard input is read only once" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_blank_standard_input_is_an_error(tmp_path: Path) -> None:
    result = resolve_piped(b" \n", f"data.cache_dir={tmp_path}", "data.source=-")
    assert "'standard input' is empty" in result.stderr


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_head_of_a_source_is_the_beginning_of_its_text(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    assert read_head(file_of(tmp_path, pack(b"text"))) == b"text"
    assert read_head(file_of(tmp_path, pack(b"text" * 100_000))) == (b"text" * 100_000)[:SAMPLE_BYTES]


def test_a_damaged_archive_in_a_folder_is_named(tmp_path: Path) -> None:
    tree(tmp_path, a__txt=b"a", b__gz=gzip.compress(b"text")[:-1])
    with pytest.raises(DataError, match=r"^data\.source: '.*b\.gz' ends in the middle of its gzip data; copy or"):
        resolve(str(tmp_path))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("closed", ["folder", "folder/b.txt"])
@pytest.mark.parametrize("pattern", ["", "/*"])
def test_what_may_not_be_read_in_a_folder_is_named(
    public_folder: Path, closed: str, pattern: str, request: pytest.FixtureRequest
) -> None:
    tree(public_folder, a__txt=b"a")
    tree(public_folder / "folder", b__txt=b"b")
    (public_folder / closed).chmod(0)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(DataError, match=rf"^data\.source: cannot read '.*{closed}': Permission denied"):
        resolve(f"{public_folder}{pattern}", cache_dir=str(public_folder / "cache"))


def test_other_kinds_of_addresses_are_refused() -> None:
    with pytest.raises(DataError, match="http and https, not with ftp"):
        resolve("ftp://example.org/a.txt")


def test_a_download_of_an_earlier_run_needs_no_network(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/book.txt"
    with pytest.raises(DataError, match="cannot download"):
        resolve(url, cache_dir=str(tmp_path))
    kept = tmp_path / "downloads" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-book.txt"
    kept.write_bytes(b"text")
    assert download(url, tmp_path / "downloads") == kept
    assert resolve(url, cache_dir=str(tmp_path)) == ([Source(url, kept, 4)], [])


def test_a_sum_without_a_download_is_said_to_have_no_effect(tmp_path: Path) -> None:
    source = file_of(tmp_path, b"x")
    sources, lines = resolve(source.name, sha256="0" * 64)
    assert sources == [source]
    assert lines == ["data.sha256 is checked for downloads only; it has no effect here"]


def test_one_sum_cannot_belong_to_two_downloads() -> None:
    with pytest.raises(DataError, match=r"but data\.source and data\.val_source names 2"):
        resolve("http://127.0.0.1:9/a", val_source="http://127.0.0.1:9/b", sha256="0" * 64)
    with pytest.raises(DataError, match=r"sum of one download, but data\.source names 2"):
        resolve("http://127.0.0.1:9/a", "http://127.0.0.1:9/b", sha256="0" * 64)


def test_sources_are_listed_with_their_sizes_and_of_many_the_largest() -> None:
    lines: list[str] = []
    sources = [Source(f"{i}.txt", Path(f"{i}.txt"), 1_234_000 + i % 5 * 10**6) for i in range(10)]
    list_sources(sources[:2], lines.append)
    list_sources(sources, lines.append)
    assert lines == [
        "0.txt: 1.2 MB",
        "1.txt: 2.2 MB",
        "10 files, 32.3 MB; the largest:",
        "    4.txt: 5.2 MB",
        "    9.txt: 5.2 MB",
        "    3.txt: 4.2 MB",
    ]

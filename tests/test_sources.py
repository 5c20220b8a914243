import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.schema import DataConfig
from data.download import download
from data.sources import (
    Source,
    content_digest,
    file_source,
    format_size,
    list_sources,
    local_path,
    read_text,
    resolve_sources,
    stdlib_sources,
)
from errors import DataError

ROOT = Path(__file__).parent.parent


def file_of(folder: Path, content: bytes, name: str = "text.txt") -> Source:
    path = folder / name
    path.write_bytes(content)
    return file_source(str(path))


def read_all(source: Source, chunk_bytes: int = 1 << 20) -> str:
    return "".join(read_text(source, chunk_bytes=chunk_bytes))


def resolve(*names: str, cache_dir: str = "unused", sha256: str | None = None) -> tuple[list[Source], list[str]]:
    lines: list[str] = []
    source = names[0] if len(names) == 1 else list(names)
    config = DataConfig(source=source, cache_dir=cache_dir, sha256=sha256)
    return resolve_sources(config, report=lines.append), lines


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
    assert sum(len(read_all(source)) for source in sources) > 1_000_000


def test_a_python_without_library_sources_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source=stdlib.*data\.source=FILE"):
        stdlib_sources(tmp_path)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 1 << 20])
def test_marks_and_line_ends_are_normalised_wherever_a_chunk_ends(tmp_path: Path, chunk_bytes: int) -> None:
    source = file_of(tmp_path, b"\xef\xbb\xbf" + "a\r\nb\rc\n\r\r\n\ufeffé🙂\r".encode())
    assert read_all(source, chunk_bytes) == "a\nb\nc\n\n\n\ufeffé🙂\n"


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(1, 9))
def test_any_text_is_read_as_python_reads_it(text: str, chunk_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = file_of(Path(folder), text.encode("utf-8"))
        assert read_all(source, chunk_bytes) == source.path.read_text(encoding="utf-8-sig")


def test_both_line_ends_give_the_same_text(tmp_path: Path) -> None:
    unix = file_of(tmp_path, b"one\ntwo\n", "unix.txt")
    windows = file_of(tmp_path, b"one\r\ntwo\r\n", "windows.txt")
    assert read_all(unix) == read_all(windows)


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    text = "naïve — 你好 🙂\u200b"
    source = file_of(tmp_path, text.encode(), "naïve 🙂.txt")
    program = (
        "import sys; from data.sources import file_source, read_text; "
        "from errors import utf8_arguments; "
        "print(ascii(''.join(read_text(file_source(utf8_arguments(sys.argv[1:])[0])))))"
    )
    environment = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    result = subprocess.run(
        [sys.executable, "-c", program, str(source.path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert result.stderr == b""
    assert result.stdout.decode().strip() == ascii(text)


@pytest.mark.parametrize("chunk_bytes", [1, 4, 1 << 20])
@pytest.mark.parametrize(
    ("content", "offset", "found"),
    [
        (b"caf\xe9", 3, "0xe9"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", 6, "0xe9"),
        ("你好".encode() + b"\xe4\xbd", 6, "0xe4"),
        ("你好".encode("gbk"), 0, "0xc4"),
        (b"plain, then \xed\xa0\x80 a surrogate", 12, "0xed"),
    ],
)
def test_bytes_that_are_not_utf8_are_named_with_file_and_offset(
    tmp_path: Path, content: bytes, offset: int, found: str, chunk_bytes: int
) -> None:
    source = file_of(tmp_path, content)
    with pytest.raises(DataError) as error:
        read_all(source, chunk_bytes)
    assert f"{source.name}: byte {offset} (counted from 0) is {found}" in str(error.value)
    assert "convert the file to UTF-8" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"text\0text", b"\0", b"%PDF" + bytes(range(256))])
def test_binary_files_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"byte \d+ .* is 0x00: this is binary data, not text"):
        read_all(file_of(tmp_path, content))


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 1 << 20])
def test_the_offset_of_a_binary_byte_is_right_wherever_a_chunk_ends(tmp_path: Path, chunk_bytes: int) -> None:
    with pytest.raises(DataError, match=r"byte 3 \(counted from 0\) is 0x00"):
        read_all(file_of(tmp_path, "你\0".encode()), chunk_bytes)


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not UTF-8|binary"):
        read_all(file_of(tmp_path, hashlib.shake_256(b"seed").digest(1 << 20)))


def test_utf16_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is UTF-16, not UTF-8"):
        read_all(file_of(tmp_path, "hello".encode("utf-16")))


def test_a_missing_file_gets_the_nearest_name_of_its_folder(tmp_path: Path) -> None:
    file_of(tmp_path, b"x", "shakespeare.txt")
    with pytest.raises(DataError, match=r"there is no file '.*/shakespear\.txt'; did you mean '.*/shakespeare\.txt'"):
        resolve(str(tmp_path / "shakespear.txt"))
    with pytest.raises(DataError, match="there is no file"):
        resolve(str(tmp_path / "zzz"))
    with pytest.raises(DataError, match=r"no folder '.*nowhere' either"):
        resolve(str(tmp_path / "nowhere" / "a.txt"))


def test_a_file_on_the_way_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    file_of(tmp_path, b"x", "a.txt")
    with pytest.raises(DataError, match=r"cannot read .*Not a directory"):
        resolve(str(tmp_path / "a.txt" / "b.txt"))


def test_a_folder_is_not_a_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; name a file in it"):
        resolve(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_a_text_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        resolve(str(tmp_path / "pipe"))


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Whoever may read every file takes the part of somebody who may not."""
    if os.name != "posix":
        pytest.skip("needs the permissions of POSIX")
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


@pytest.mark.parametrize("content", [b"short", b"long" * 100_000])
def test_a_file_that_may_not_be_read_is_one_line(
    tmp_path: Path, content: bytes, request: pytest.FixtureRequest
) -> None:
    source = file_of(tmp_path, content)
    source.path.chmod(0)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(DataError, match=r"cannot read '.*text\.txt': Permission denied"):
        content_digest(source)
    with pytest.raises(DataError, match="Permission denied"):
        read_all(source)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \r\n\t\n", b"\xef\xbb\xbf\n"])
def test_an_empty_file_is_an_error_alone_and_skipped_with_a_notice_among_others(tmp_path: Path, content: bytes) -> None:
    empty = file_of(tmp_path, content, "empty.txt")
    full = file_of(tmp_path, b"x", "full.txt")
    with pytest.raises(DataError, match=r"empty\.txt' is empty"):
        resolve(empty.name)
    assert resolve(empty.name, full.name) == ([full], [f"{empty.name}: skipped, the file is empty"])
    with pytest.raises(DataError, match="all of the files are empty"):
        resolve(empty.name, empty.name)


def test_a_file_that_changes_between_two_readings_is_noticed(tmp_path: Path) -> None:
    source = file_of(tmp_path, b"before")
    digest = content_digest(source)
    assert "".join(read_text(source, expected_digest=digest)) == "before"
    source.path.write_bytes(b"after!")
    with pytest.raises(DataError, match="changed while it was being read"):
        list(read_text(source, expected_digest=digest))


def test_reading_tells_how_many_bytes_are_done(tmp_path: Path) -> None:
    source = file_of(tmp_path, "\ufeffné\r\n".encode() * 10)
    done: list[int] = []
    list(read_text(source, chunk_bytes=7, advance=done.append))
    assert sum(done) == source.size
    done.clear()
    content_digest(source, advance=done.append)
    assert sum(done) == source.size


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
    with pytest.raises(DataError, match=r"sum of one download, but data\.source names 2"):
        resolve("http://127.0.0.1:9/a", "http://127.0.0.1:9/b", sha256="0" * 64)


def test_sources_are_listed_with_their_sizes_and_many_are_summed_up() -> None:
    lines: list[str] = []
    sources = [Source(f"{i}.txt", Path(f"{i}.txt"), 1_234_000) for i in range(10)]
    list_sources(sources[:2], lines.append)
    list_sources(sources, lines.append)
    assert lines == ["0.txt: 1.2 MB", "1.txt: 1.2 MB", "10 files, 12.3 MB: 0.txt … 9.txt"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
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

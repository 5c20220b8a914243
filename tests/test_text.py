import bz2
import gzip
import hashlib
import lzma
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sources import Source, file_source
from data.text import CHUNK_BYTES, content_digest, read_text
from errors import DataError

ROOT = Path(__file__).parent.parent
CHUNK_SIZES = [1, 2, 3, 5, 1 << 20]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def file_of(folder: Path, content: bytes, name: str = "text.txt", where: str = "data.source") -> Source:
    path = folder / name
    path.write_bytes(content)
    return file_source(str(path), where)


def read_all(
    source: Source,
    chunk_bytes: int = CHUNK_BYTES,
    encoding: str = "utf-8",
    newlines: Literal["normalize", "keep"] = "normalize",
) -> str:
    return "".join(read_text(source, chunk_bytes=chunk_bytes, encoding=encoding, newlines=newlines))


def complaint(source: Source, chunk_bytes: int = CHUNK_BYTES, encoding: str = "utf-8") -> str:
    with pytest.raises(DataError) as error:
        read_all(source, chunk_bytes, encoding)
    assert "\n" not in str(error.value)
    assert source.name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
def test_marks_and_line_ends_are_normalised_wherever_a_chunk_ends(tmp_path: Path, chunk_bytes: int) -> None:
    source = file_of(tmp_path, b"\xef\xbb\xbf" + "a\r\nb\rc\n\r\r\n\ufeffé🙂\r".encode())
    assert read_all(source, chunk_bytes) == "a\nb\nc\n\n\n\ufeffé🙂\n"


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
def test_line_ends_are_kept_where_wanted_and_never_cut(tmp_path: Path, chunk_bytes: int) -> None:
    text = "a\r\nb\rc\n\r\r\nend\r"
    source = file_of(tmp_path, b"\xef\xbb\xbf" + text.encode())
    pieces = list(read_text(source, chunk_bytes=chunk_bytes, newlines="keep"))
    assert "".join(pieces) == text
    assert not any(left.endswith("\r") and right.startswith("\n") for left, right in pairwise(pieces))
    assert all(pieces)


@settings(deadline=None)
@given(ANY_TEXT, st.integers(1, 9), st.sampled_from(["utf-8", "utf-16", "utf-16-be", "utf-32", "gb18030", "utf-7"]))
def test_any_text_in_any_chunks_is_the_whole_decoded(text: str, chunk_bytes: int, encoding: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = text.encode(encoding)
        source = file_of(Path(folder), content)
        try:
            kept = read_all(source, chunk_bytes, encoding, "keep")
        except DataError as error:  # what is full of control characters, or begins like another format
            assert "this is" in str(error) or "byte order mark" in str(error)  # noqa: PT017 - either is right
            return
        whole = content.decode(encoding).removeprefix("\ufeff")
        assert kept == whole
        assert read_all(source, chunk_bytes, encoding) == whole.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("\ufeffnaïve — 你好 🙂\r\n", "utf-8"),
        ("\ufeffnaïve — 你好 🙂\r\n", "utf-8-sig"),
        ("naïve — 你好 🙂\r\n", "utf-16"),
        ("\ufeffnaïve — 你好 🙂\r\n", "utf-16-le"),
        ("naïve — 你好 🙂\r\n", "utf-32"),
        ("naïve — 你好 🙂\r\n", "utf-7"),
        ("你好，世界\r\n", "gbk"),
        ("今天天氣很好\r\n", "big5"),
        ("こんにちは\r\n", "shift_jis"),
        ("こんにちは\r\n", "iso2022_jp"),
        ("안녕하세요\r\n", "euc-kr"),
        ("naïve — “quoted”\r\n", "cp1252"),
    ],
)
def test_texts_are_read_in_any_encoding_wherever_a_chunk_ends(
    tmp_path: Path, text: str, encoding: str, chunk_bytes: int
) -> None:
    source = file_of(tmp_path, (text * 3).encode(encoding))
    expected = (text * 3).removeprefix("\ufeff")
    assert read_all(source, chunk_bytes, encoding, "keep") == expected
    assert read_all(source, chunk_bytes, encoding) == expected.replace("\r\n", "\n")


def test_a_source_with_an_encoding_of_its_own_is_read_in_that(tmp_path: Path) -> None:
    file_of(tmp_path, "é".encode())
    source = Source("own", tmp_path / "text.txt", 2, encoding="utf-8")
    assert read_all(source, encoding="cp1252") == "é"


def test_both_line_ends_give_the_same_text(tmp_path: Path) -> None:
    unix = file_of(tmp_path, b"one\ntwo\n", "unix.txt")
    windows = file_of(tmp_path, b"one\r\ntwo\r\n", "windows.txt")
    assert read_all(unix) == read_all(windows)


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("content", "is_changed"), [(b"a\r\nb", True), (b"a\r", True), (b"a\n\rb", True), (b"a\nb\n", False), (b"a", False)]
)
def test_changed_line_ends_are_told_once_at_the_end(
    tmp_path: Path, content: bytes, is_changed: bool, chunk_bytes: int
) -> None:
    source = file_of(tmp_path, content * 3)
    told: list[object] = []
    for piece in read_text(source, chunk_bytes=chunk_bytes, on_normalized=told.append):
        told.append(piece)
    assert [item for item in told if isinstance(item, Source)] == [source] * is_changed
    assert isinstance(told[-1], Source) == is_changed
    told.clear()
    list(read_text(source, newlines="keep", on_normalized=told.append))
    assert told == []


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    text = "naïve — 你好 🙂\u200b"
    source = file_of(tmp_path, text.encode(), "naïve 🙂.txt")
    program = (
        "import sys; from data.sources import file_source; from data.text import read_text; "
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


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("content", "encoding", "offset", "found"),
    [
        (b"caf\xe9", "utf-8", 3, "0xe9"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", "utf-8", 6, "0xe9"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", "utf-8-sig", 6, "0xe9"),
        ("你好".encode() + b"\xe4\xbd", "utf-8", 6, "0xe4"),
        ("你好".encode("gbk"), "utf-8", 0, "0xc4"),
        (b"plain, then \xed\xa0\x80 a surrogate", "utf-8", 12, "0xed"),
        ("ab你好".encode("gbk") + b"\xff\xff", "gbk", 6, "0xff"),
        ("ab你好".encode("gbk") + b"\xc4", "gbk", 6, "0xc4"),
        ("ab你好".encode("gb18030") + b"\x81\x30\x81", "gb18030", 6, "0x81"),
        ("ab今天".encode("big5") + b"\xff\xff", "big5", 6, "0xff"),
        ("abこん".encode("shift_jis") + b"\xff\xff", "shift_jis", 6, "0xff"),
        ("ab안녕".encode("euc-kr") + b"\xff\xff", "euc-kr", 6, "0xff"),
        ("ab".encode("utf-16-le") + b"\x00\xdcc\x00", "utf-16-le", 4, "0x00"),
        (b"\xff\xfe" + "ab".encode("utf-16-le") + b"\x00\xdcc\x00", "utf-16", 6, "0x00"),
        (b"abc\x81d", "cp1252", 3, "0x81"),
        (b"ab\x1b$B\x24\x22\xff\x1b(B", "iso2022_jp", 7, "0xff"),
    ],
)
def test_bytes_that_cannot_be_decoded_are_named_with_file_and_offset(
    tmp_path: Path, content: bytes, encoding: str, offset: int, found: str, chunk_bytes: int
) -> None:
    source = file_of(tmp_path, content)
    place = f"{source.name}: byte {offset} (counted from 0) is {found}, which is not {encoding.upper()}; "
    assert place in complaint(source, chunk_bytes, encoding)


def test_the_offset_is_right_far_into_a_file_and_in_what_was_compressed(tmp_path: Path) -> None:
    content = "né\r\n".encode() * 100_000 + b"caf\xe9" + b"more " * 100_000
    assert "byte 500003 (counted from 0) is 0xe9" in complaint(file_of(tmp_path, content), 1 << 16)
    assert "byte 500003 (counted from 0) is 0xe9" in complaint(file_of(tmp_path, gzip.compress(content)))


@pytest.mark.parametrize(
    ("text", "encoding", "likely"),
    [
        ("Le café était déjà fermé.\n", "cp1252", "cp1252"),
        ("你好，世界。今天天气很好。\n", "gbk", "gb18030"),
        ("こんにちは世界。今日は天気がいいですね。\n", "shift_jis", "cp932"),
        ("Привет, мир. Сегодня хорошая погода.\n", "cp1251", "cp1251"),
        ("hello", "utf-16", "utf-16"),
        ("hello", "utf-16-le", "utf-16-le"),
    ],
)
def test_a_likely_encoding_is_given_as_a_setting_that_works(
    tmp_path: Path, text: str, encoding: str, likely: str
) -> None:
    for content in (text.encode(encoding), (b"" if "utf" in encoding else b"ascii\n" * 20_000) + text.encode(encoding)):
        source = file_of(tmp_path, content)
        assert f"try data.encoding={likely}, or convert the file to UTF-8" in complaint(source)
        assert read_all(source, encoding=likely).endswith(text)


def test_a_file_of_utf8_is_recognised_where_another_encoding_was_expected(tmp_path: Path) -> None:
    assert "try data.encoding=utf-8" in complaint(file_of(tmp_path, "你好，世界。a".encode()), encoding="big5")
    marked = file_of(tmp_path, "é".encode("utf-8-sig"))
    assert "begins with the byte order mark of UTF-8, so it is not CP1252" in complaint(marked, encoding="cp1252")
    assert "try data.encoding=utf-16-le" in complaint(
        file_of(tmp_path, "hé, you".encode("utf-16-le")), encoding="utf-16"
    )


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("content", "encoding", "start"),
    [
        ("hé, you".encode("utf-16")[:-1], "utf-16", 14),
        ("你好，世界".encode("utf-16-be")[:-1], "utf-16-be", 8),
        ("ab🙂".encode("utf-16-le")[:-2], "utf-16-le", 4),
        ("ab".encode("utf-32")[:-1], "utf-32", 8),
    ],
)
def test_a_file_that_ends_within_a_wide_character_is_cut_off(
    tmp_path: Path, content: bytes, encoding: str, start: int, chunk_bytes: int
) -> None:
    message = complaint(file_of(tmp_path, content), chunk_bytes, encoding)
    assert f"ends in the middle of the {encoding.upper()} character that begins at byte {start} (coun" in message
    assert "cut off; copy or download it again" in message


def test_a_file_of_ascii_that_is_read_as_utf16_is_not_called_cut_off(tmp_path: Path) -> None:
    assert "try data.encoding=utf-8" in complaint(file_of(tmp_path, b"seven b"), encoding="utf-16-le")


def test_chinese_in_utf16_without_its_mark_gets_a_setting_that_works(tmp_path: Path) -> None:
    text = "你好，世界。今天天气很好，我们去公园。\n你好 abc\n"
    for encoding in ("utf-16-le", "utf-16-be"):
        source = file_of(tmp_path, text.encode(encoding))
        assert f"try data.encoding={encoding}, or convert" in complaint(source)
        assert read_all(source, encoding=encoding) == text


def test_a_text_that_no_setting_named_is_to_be_converted(tmp_path: Path) -> None:
    for content in (b"caf\xe9", "hello".encode("utf-16"), "hello".encode("utf-16-le")):
        message = complaint(file_of(tmp_path, content, where="--text-file"))
        assert "convert the file to UTF-8 and try again" in message
        assert "data." not in message
    assert "it may be cp1252: convert" in complaint(file_of(tmp_path, b"caf\xe9", where="--text-file"))


def test_one_damaged_place_in_a_file_of_utf8_suggests_no_other_encoding(tmp_path: Path) -> None:
    message = complaint(file_of(tmp_path, "naïve — 你好 🙂\n".encode() * 20 + b"\xff\n"))
    assert "all else around it is UTF-8, so the file may be damaged; repair that place" in message


@pytest.mark.parametrize("content", [b"text\0text", b"\0", b"a" + bytes(range(256))])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "latin-1", "gb18030"])
def test_binary_files_are_refused(tmp_path: Path, content: bytes, encoding: str) -> None:
    for chunk_bytes in (1, CHUNK_BYTES):
        message = complaint(file_of(tmp_path, content), chunk_bytes, encoding)
        assert message.endswith("this is binary data, not text")
    assert "is 0x00" in complaint(file_of(tmp_path, content), 1, encoding)


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
@pytest.mark.parametrize(
    ("text", "encoding", "offset"),
    [("你\0", "utf-8", 3), ("你\0", "gbk", 2), ("你a\0", "utf-16-le", 4), ("é\0", "utf-16", 4), ("é\0", "cp1252", 1)],
)
def test_the_offset_of_a_binary_byte_is_right_wherever_a_chunk_ends(
    tmp_path: Path, text: str, encoding: str, offset: int, chunk_bytes: int
) -> None:
    message = complaint(file_of(tmp_path, text.encode(encoding)), chunk_bytes, encoding)
    assert f"byte {offset} (counted from 0) is 0x00" in message


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "latin-1", "utf-16", "gb18030"])
def test_random_bytes_are_refused(tmp_path: Path, encoding: str) -> None:
    content = hashlib.shake_256(b"seed").digest(1 << 20)
    message = complaint(file_of(tmp_path, content), encoding=encoding)
    assert "binary data, not text" in message or "this is not UTF-16" in message
    without_zeros = file_of(tmp_path, content.replace(b"\0", b"\1"))
    message = complaint(without_zeros, encoding=encoding)
    assert "binary data, not text" in message or "this is not UTF-16" in message


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"%PDF-1.7\n1 0 obj << >>", "a PDF document, not plain text; save its text as a plain text file"),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive, as .docx, .odt and .epub are"),
        (b"{\\rtf1 Hello}", "an RTF document"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_documents_that_are_called_txt_are_named(tmp_path: Path, content: bytes, kind: str, chunk_bytes: int) -> None:
    assert f"this is {kind}" in complaint(file_of(tmp_path, content), chunk_bytes)
    assert f"this is {kind}" in complaint(file_of(tmp_path, gzip.compress(content)), chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
def test_half_of_a_surrogate_pair_is_an_error_here_and_not_later(tmp_path: Path, chunk_bytes: int) -> None:
    source = file_of(tmp_path, b"ab+2AA-c")
    assert b"ab+2AA-c".decode("utf-7") == "ab\ud800c"
    assert "half of a surrogate pair" in complaint(source, chunk_bytes, "utf-7")


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd.compress])
def test_compressed_texts_are_read_and_their_stored_bytes_counted(tmp_path: Path, pack, chunk_bytes: int) -> None:
    text = "naïve — 你好 🙂\r\n" * 200
    source = file_of(tmp_path, pack(b"\xef\xbb\xbf" + text.encode()) + pack(text.encode()))
    done: list[int] = []
    digest = content_digest(source, advance=done.append)
    assert digest == hashlib.sha256(source.path.read_bytes()).hexdigest()
    pieces = read_text(source, chunk_bytes=chunk_bytes, expected_digest=digest, advance=done.append)
    assert "".join(pieces) == text.replace("\r\n", "\n") * 2
    assert sum(done) == 2 * source.size


def test_a_damaged_archive_is_one_line_with_its_name(tmp_path: Path) -> None:
    packed = gzip.compress(b"text" * 1000)
    assert "ends in the middle of its gzip data" in complaint(file_of(tmp_path, packed[:-4]))
    message = complaint(file_of(tmp_path, packed[:-8] + b"\1" + packed[-7:]))
    assert "data.source: " in message
    assert "is a damaged gzip file (Error -3 while decompressing data: incorrect data check)" in message


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

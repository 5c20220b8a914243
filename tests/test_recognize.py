import hashlib
import io
import tarfile
import zipfile

import pytest

from data.recognize import (
    BINARY,
    SAMPLE_BYTES,
    binary_kind,
    decoded,
    is_blank,
    is_misread,
    likely_encoding,
    marked_encoding,
)

FRENCH = "Le café était déjà fermé. Où êtes-vous allés, mon frère ? Ça va très bien, à bientôt.\n"
CHINESE = "你好，世界。今天天气很好，我们一起去公园散步吧。\n"
JAPANESE = "こんにちは世界。今日は天気がいいですね。カタカナも使います。\n"
KOREAN = "안녕하세요 세계. 오늘은 날씨가 좋습니다. 공원에 갑시다.\n"
RUSSIAN = "Привет, мир. Сегодня хорошая погода, пойдём гулять в парк.\n"
POLISH = "Zażółć gęślą jaźń. Dziś jest ładna pogoda, idziemy na spacer.\n"


def tar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return buffer.getvalue()


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", "text")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.7\n1 0 obj", "a PDF document, not plain text; save its text as a plain text file"),
        (b"{\\rtf1\\ansi Hello}", "an RTF document"),
        (zip_archive(), "a ZIP archive, as .docx, .odt and .epub are"),
        (tar_archive(), "a tar archive, not text; unpack it"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", BINARY),
        (b"\x7fELF\x02\x01\x01" + bytes(9), BINARY),
        (hashlib.shake_256(b"seed").digest(2000), BINARY),
        (b"\0\1", BINARY),
        (bytes(range(1, 200, 3)).replace(b"", b"\0"), BINARY),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "latin-1", "gb18030"])
def test_what_is_not_text_is_recognised_in_any_encoding(head: bytes, kind: str, encoding: str) -> None:
    assert (binary_kind(head, encoding) or "").startswith(kind)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"plain\ttext\r\n\f\x1b[31mred\x1b[0m",
        b"caf\xe9",
        b"the end of a DOS file\r\n\x1a",
        CHINESE.encode("gbk"),
        JAPANESE.encode("shift_jis"),
        FRENCH.encode("utf-16"),
        FRENCH.encode("utf-16-le"),
        FRENCH.encode("utf-16-be"),
        CHINESE.encode("utf-8")[:-2],
    ],
)
def test_text_is_text_whatever_the_encoding(head: bytes) -> None:
    assert binary_kind(head, "utf-8") is None


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, KOREAN, RUSSIAN])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_its_mark_is_recognised_in_any_script(text: str, encoding: str) -> None:
    for times in (1, 100):
        head = (text * times).encode(encoding)
        assert binary_kind(head, "utf-8") is None
        assert likely_encoding(head, but_not="utf-8") == encoding


@pytest.mark.parametrize("seed", range(50))
def test_random_bytes_are_not_utf16(seed: int) -> None:
    head = hashlib.shake_256(bytes([seed])).digest(64)
    assert likely_encoding(head + bytes([0, 1, 2, 3]), but_not="utf-8") not in ("utf-16-le", "utf-16-be")


def test_utf8_that_is_read_in_another_encoding_is_recognised() -> None:
    for encoding in ("latin-1", "cp1252", "utf-16-le"):
        assert is_misread(FRENCH.encode() + b"  "[: len(FRENCH.encode()) % 2], encoding)
        assert not is_misread(FRENCH.encode("cp1252"), encoding)
        assert not is_misread(b"plain", encoding)
    assert not is_misread(FRENCH.encode(), "UTF8")
    assert not is_misread("你好，世界。a".encode(), "big5"), "reading it will fail"


@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", b" \r\n\t\n", b"\xef\xbb\xbf\n", " \n\u3000".encode("utf-16")])
def test_a_file_of_blanks_is_blank(head: bytes) -> None:
    assert is_blank(head, "utf-8")


def test_what_holds_something_or_is_long_is_not_blank() -> None:
    assert not is_blank(b" x", "utf-8")
    assert not is_blank(b" \xe9", "utf-8")
    assert not is_blank(b" " * SAMPLE_BYTES, "utf-8")
    assert is_blank(b" " * (SAMPLE_BYTES - 1), "utf-8")


def test_byte_order_marks_give_the_encoding_away() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert marked_encoding("a".encode(encoding)) == encoding.removesuffix("-sig")
    assert marked_encoding(b"\xfe\xff\0a") == "utf-16"
    assert marked_encoding(b"abc") is None


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize(
    ("text", "encoding", "likely"),
    [
        (FRENCH, "cp1252", "cp1252"),
        ("The “naïve” café — don’t you think it’s fine?\n", "cp1252", "cp1252"),
        (CHINESE, "gbk", "gb18030"),
        ("今天天氣很好，我們一起去公園散步吧。臺灣的學生喜歡讀書。\n", "big5", "big5"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (KOREAN, "euc_kr", "cp949"),
        (RUSSIAN, "cp1251", "cp1251"),
        (RUSSIAN, "koi8_r", "koi8_r"),
        (RUSSIAN, "cp866", "cp866"),
        (POLISH, "cp1250", "cp1250"),
        (FRENCH, "utf-16", "utf-16"),
        (FRENCH, "utf-16-le", "utf-16-le"),
        (FRENCH, "utf-16-be", "utf-16-be"),
        (FRENCH, "utf-32", "utf-32"),
    ],
)
def test_the_encoding_of_a_text_is_guessed(text: str, encoding: str, likely: str, times: int) -> None:
    assert likely_encoding((text * times).encode(encoding), but_not="utf-8") == likely


def test_short_texts_get_the_usual_encoding() -> None:
    assert likely_encoding(b"caf\xe9", but_not="utf-8") == "cp1252"
    assert likely_encoding("你好".encode("gbk"), but_not="utf-8") == "gb18030"


@pytest.mark.parametrize("used", ["utf-8", "cp1252", "gb18030", "utf-16", "big5"])
def test_a_guess_can_decode_the_sample_and_is_not_the_encoding_in_use(used: str) -> None:
    for text in (FRENCH, CHINESE, JAPANESE, RUSSIAN):
        for encoding in ("utf-8", "cp1252", "gb18030", "utf-16", "cp932", "cp1251"):
            sample = text.encode(encoding, "ignore") + b"\xff\x81"
            guess = likely_encoding(sample, but_not=used)
            assert guess != used
            assert guess is None or decoded(sample, guess) is not None


def test_nothing_is_guessed_for_nonsense() -> None:
    assert likely_encoding(hashlib.shake_256(b"seed").digest(2000), but_not="utf-8") is None

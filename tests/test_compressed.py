import bz2
import gzip
import hashlib
import lzma
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from data.compressed import ArchiveError, open_content, packing_of

TEXT = "naïve — 你好 🙂\n".encode() * 500
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    # with the check sum that the command zstd writes
    "zstd": lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}),
}


def content_of(path: Path, chunk_bytes: int = 1 << 20) -> bytes:
    with open_content(path) as content:
        return b"".join(content.chunks(chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("packing", PACK)
def test_what_is_compressed_is_recognised_by_its_content_and_unpacked(
    tmp_path: Path, packing: str, chunk_bytes: int
) -> None:
    (tmp_path / "text.txt").write_bytes(PACK[packing](TEXT))
    with open_content(tmp_path / "text.txt") as content:
        assert content.packing == packing
        assert b"".join(content.chunks(chunk_bytes)) == TEXT


def test_a_file_that_is_not_compressed_is_read_as_it_is(tmp_path: Path) -> None:
    for data in (TEXT, b"", b"BZh", b"BZhang wrote this", b"\x1f", b"P*M"):
        (tmp_path / "text").write_bytes(data)
        assert content_of(tmp_path / "text") == data


@pytest.mark.parametrize("packing", PACK)
def test_all_members_of_a_file_are_read(tmp_path: Path, packing: str) -> None:
    pack, path = PACK[packing], tmp_path / "text"
    path.write_bytes(pack(b"one ") + pack(b"") + pack(b"two ") + pack(TEXT))
    assert content_of(path, 5) == b"one two " + TEXT


@pytest.mark.parametrize("packing", PACK)
def test_zeros_that_fill_up_a_block_are_no_member(tmp_path: Path, packing: str) -> None:
    pack, path = PACK[packing], tmp_path / "text"
    path.write_bytes(pack(b"one ") + bytes(100_000) + pack(b"two") + bytes(100_000))
    assert content_of(path) == b"one two"


@pytest.mark.parametrize("packing", PACK)
def test_an_archive_that_breaks_off_is_noticed_wherever_it_does(tmp_path: Path, packing: str) -> None:
    packed, path = PACK[packing](b"one ") + PACK[packing](TEXT), tmp_path / "text"
    first = len(PACK[packing](b"one "))
    for length in {*range(10, len(packed), 11), first + 1, len(packed) - 1} - {first}:
        path.write_bytes(packed[:length])
        with pytest.raises(ArchiveError, match=f"ends in the middle of its {packing} data; copy or download it again"):
            content_of(path)


@pytest.mark.parametrize("packing", PACK)
def test_damage_is_noticed_in_every_member(tmp_path: Path, packing: str) -> None:
    packed, path = PACK[packing](TEXT), tmp_path / "text"
    damaged = bytearray(packed)
    damaged[len(damaged) // 2] ^= 255
    for data in (bytes(damaged), packed + bytes(damaged), packed + b"something else"):
        path.write_bytes(data)
        with pytest.raises(ArchiveError, match=rf"damaged {packing} file \(.+\); copy or download|ends in the middle"):
            content_of(path)


@pytest.mark.parametrize("packing", PACK)
def test_the_digest_and_the_count_are_of_the_stored_bytes(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(PACK[packing](TEXT))
    with open_content(path) as content:
        plain = b"".join(content.chunks(100))
        assert content.num_stored == path.stat().st_size
        stored = content.stored_digest()
    assert plain == TEXT
    assert stored == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("packing", PACK)
def test_memory_stays_bounded_however_much_comes_out(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(PACK[packing](b"a" * 50_000_000))
    tracemalloc.start()
    try:
        with open_content(path) as content:
            assert sum(map(len, content.chunks(1 << 16))) == 50_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000


def test_without_the_library_for_zstd_it_is_said_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "text.zst").write_bytes(zstd.compress(b"text"))
    program = (
        "import sys; sys.modules['backports'] = None; sys.modules['backports.zstd'] = None\n"
        "from pathlib import Path; from data.compressed import open_content\n"
        "with open_content(Path(sys.argv[1])) as content: list(content.chunks(9))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "text.zst")],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ArchiveError: is compressed with zstd" in result.stderr
    assert "pip install backports.zstd" in result.stderr


def test_frames_of_notes_are_zstd_too(tmp_path: Path) -> None:
    note = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    assert packing_of(note) == "zstd"
    (tmp_path / "text").write_bytes(note + zstd.compress(b"text"))
    assert content_of(tmp_path / "text") == b"text"


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst", ".zip", ".GZ"])
@pytest.mark.parametrize("content", [b"BZh", b"\x1f", b"\xfd7zX", b"\x28\xb5", b"PK", b"plain text"])
def test_what_is_not_what_its_name_says_is_refused(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"text{ending}"
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=rf"^is called \{ending.lower()}, but does not begin so; copy or"):
        content_of(path)


@pytest.mark.parametrize("packing", PACK)
def test_one_method_may_have_the_name_of_another_and_an_empty_file_any(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "text.zip"
    path.write_bytes(PACK[packing](TEXT))
    assert content_of(path) == TEXT
    path.write_bytes(b"")
    assert content_of(path) == b""

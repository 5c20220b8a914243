"""What a file holds is read without trusting it: nothing runs, nothing small becomes large, nothing takes long."""

import io
import pickle
import pickletools
import resource
import struct
import time
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from engine.archive import MAX_DEPTH, MAX_OPERATIONS, DamagedError, read_archive

CONTENT = {
    "weights": {"a": torch.arange(12.0).view(3, 4)},
    "tied": None,
    "step": 5,
    "text": "x" * 300,
    "list": [1, 2.5],
}


def saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def repacked(whole: bytes, *, pickled: bytes | None = None, **options: int) -> bytes:
    """The same archive with another pickle in it, or packed in another way."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as plain, zipfile.ZipFile(packed, "w", **options) as archive:
        for entry in plain.infolist():
            is_pickle = pickled is not None and entry.filename.endswith("/data.pkl")
            archive.writestr(entry.filename, pickled if is_pickle else plain.read(entry))  # type: ignore[arg-type]
    return packed.getvalue()


def pickle_of(whole: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return archive.read("archive/data.pkl")


class Calls:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def tensor(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Calls:
    """A tensor of three numbers that says it has another shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = torch.zeros(3).storage()
    return Calls(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, OrderedDict())


def assert_refused(path: Path, content: bytes) -> None:
    """In little time and little memory."""
    path.write_bytes(content)
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DamagedError):
        read_archive(path)
    assert time.process_time() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000  # kB


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    tied = {**CONTENT, "tied": CONTENT["weights"]["a"]}
    (tmp_path / "a.pt").write_bytes(saved(tied))
    loaded = read_archive(tmp_path / "a.pt")
    assert torch.equal(loaded["weights"]["a"], loaded["tied"])
    assert {**loaded, "weights": None, "tied": None} == {**tied, "weights": None, "tied": None}


@pytest.mark.parametrize(
    "content",
    [
        tensor((10**12,), (1,)),
        tensor((10**12,), (0,)),
        tensor((10**6, 10**6), (0, 1)),
        tensor((3,), (1,), 10**12),
        tensor((3,), (-1,)),
        tensor((-3,), (1,)),
        tensor((2**62, 2**62), (1, 1)),
        Calls(bytearray, 10**12),
        Calls(torch.FloatTensor, 10**11),
        Calls(torch.UntypedStorage, 10**12),
        Calls(torch._utils._rebuild_meta_tensor_no_storage, torch.float32, (10**12,), (1,), False),
        {"a": torch.zeros(3, 3).to_sparse()},
        {"a": torch.zeros(3, dtype=torch.complex64)},
        torch.nn.Linear(2, 2),
        {"a": {1, 2}},
        Calls(print, "executed"),
        Calls(eval, "1"),
    ],
    ids=str,
)
def test_what_is_larger_than_it_says_or_calls_anything_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object
) -> None:
    assert_refused(tmp_path / "a.pt", saved({"step": 1, "hostile": content}))
    assert capsys.readouterr() == ("", "")


def test_one_that_declares_more_than_its_storage_has_is_refused(tmp_path: Path) -> None:
    whole = saved({"a": torch.arange(100.0)})
    pickled = pickle_of(whole)
    (where, _) = (position for _, argument, position in pickletools.genops(pickled) if argument == 100)
    larger = pickled[:where] + b"J" + struct.pack("<i", 2**31 - 1) + pickled[where + 2 :]
    assert_refused(tmp_path / "a.pt", repacked(whole, pickled=larger))


def test_weights_that_are_one_and_the_same_a_thousand_times_are_refused(tmp_path: Path) -> None:
    one = torch.zeros(100_000)
    assert_refused(tmp_path / "a.pt", saved([one.view(-1) for _ in range(1000)]))


def test_lists_of_the_same_lists_are_refused_before_anybody_walks_through_them(tmp_path: Path) -> None:
    laughs: list[object] = ["ha"]
    for _ in range(25):
        laughs = [laughs, laughs]
    assert_refused(tmp_path / "a.pt", saved({"config": laughs}))


def test_what_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    assert_refused(tmp_path / "a.pt", saved(deep))
    endless = b"\x80\x02" + b"]" * 500_000 + b"a" * 499_999 + b"."
    assert_refused(tmp_path / "a.pt", repacked(saved(1), pickled=endless))


def test_a_pickle_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    endless = b"\x80\x02" + b"N0" * (20 * MAX_OPERATIONS) + b"N."
    assert_refused(tmp_path / "a.pt", repacked(saved(1), pickled=endless))


def test_other_packings_are_refused(tmp_path: Path) -> None:
    whole = saved({"a": "x" * 1000})
    (tmp_path / "a.pt").write_bytes(repacked(whole))
    assert read_archive(tmp_path / "a.pt") == {"a": "x" * 1000}
    assert_refused(tmp_path / "a.pt", repacked(whole, compression=zipfile.ZIP_DEFLATED))
    assert_refused(tmp_path / "a.pt", repacked(saved({"a": torch.zeros(10**8)}), compression=zipfile.ZIP_DEFLATED))
    assert_refused(tmp_path / "a.pt", repacked(whole, pickled=pickle.dumps({"a": 1}, protocol=4)))
    twice = io.BytesIO(whole)
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
    assert_refused(tmp_path / "a.pt", twice.getvalue())
    none = io.BytesIO()
    with zipfile.ZipFile(none, "w") as archive:
        archive.writestr("word/document.xml", "<a/>")
    assert_refused(tmp_path / "a.pt", none.getvalue())


def test_parts_that_overlap_are_refused(tmp_path: Path) -> None:
    """Thousands of names for the same bytes would take hours to check."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(1_000_000))
        (entry,) = archive.infolist()
        for number in range(3000):
            again = zipfile.ZipInfo(f"archive/data/{number}")
            for name in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(again, name, getattr(entry, name))
            archive.filelist.append(again)
    assert_refused(tmp_path / "a.pt", packed.getvalue())


WHOLE = saved(CONTENT)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that every example writes anew."""
    return tmp_path_factory.mktemp("examples") / "a.pt"


@given(position=st.integers(0, len(WHOLE) - 1), change=st.integers(1, 255))
@example(position=WHOLE.rindex(b"PK\x01\x02", 0, WHOLE.index(b"/data/0", WHOLE.index(b"PK\x01\x02"))) + 38, change=16)
@example(position=WHOLE.rindex(b"PK\x06\x06") + 48, change=1)  # where the directory begins: parts before the file does
def test_any_changed_byte_is_noticed_or_changes_nothing(path: Path, position: int, change: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] ^= change
    path.write_bytes(damaged)
    try:
        loaded = read_archive(path)
    except DamagedError:
        return
    assert torch.equal(loaded.pop("weights")["a"], CONTENT["weights"]["a"])
    assert loaded == {name: value for name, value in CONTENT.items() if name != "weights"}


@given(length=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_short_anywhere_is_refused(path: Path, length: int) -> None:
    path.write_bytes(WHOLE[:length])
    with pytest.raises(DamagedError):
        read_archive(path)


@given(pickled=st.binary(max_size=200))
def test_any_pickle_is_read_or_refused(path: Path, pickled: bytes) -> None:
    path.write_bytes(repacked(WHOLE, pickled=b"\x80\x02" + pickled))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read_archive(path)
        except DamagedError:
            return

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from config.schema import DataConfig
from data.download import download
from data.sources import resolve_sources
from data.text import read_text
from errors import DataError

BODY = "naïve — 你好 🙂\n".encode() * 1000


class Handler(BaseHTTPRequestHandler):
    """Serves BODY, or fails in the way that the path names. `stop` ends whoever stalls."""

    requests: list[str]  # paths, in order
    stop: threading.Event

    def do_GET(self) -> None:
        self.requests.append(self.path)
        if self.path == "/missing.txt":
            self.send_error(404)
            return
        if self.path == "/circle.txt":
            self.send_response(302)
            self.send_header("Location", "/circle.txt")
            self.end_headers()
            return
        if self.path == "/moved.txt":
            self.send_response(302)
            self.send_header("Location", "/text.txt")
            self.end_headers()
            return
        self.send_response(200)
        length = {"/truncated.txt": len(BODY) + 1, "/empty.txt": 0}.get(self.path, len(BODY))
        breaks_off = self.path == "/flaky.txt" and self.requests.count(self.path) == 1
        if self.path != "/unsized.txt":
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.path == "/stalls.txt":
            self.wfile.write(BODY[:10])
            self.wfile.flush()
            self.stop.wait(10)
        elif self.path == "/packed.txt.gz":
            self.wfile.write(gzip.compress(BODY).ljust(len(BODY), b"\0"))
        elif self.path != "/empty.txt":
            self.wfile.write(BODY[: len(BODY) // 2] if breaks_off else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    class OwnHandler(Handler):
        requests: list[str] = []  # noqa: RUF012
        stop = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", 0), OwnHandler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}", OwnHandler.requests
        OwnHandler.stop.set()
        http_server.shutdown()
        thread.join()


def test_a_text_is_downloaded_whole_and_only_once(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, requests = server
    path = download(f"{url}/text.txt", tmp_path / "cache" / "downloads")
    assert path.read_bytes() == BODY
    assert path.name.endswith("-text.txt")
    assert download(f"{url}/text.txt", tmp_path / "cache" / "downloads") == path
    assert requests == ["/text.txt"]
    assert list(path.parent.iterdir()) == [path]


def test_equal_names_at_different_addresses_are_different_files(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, _ = server
    assert download(f"{url}/a/text.txt", tmp_path) != download(f"{url}/b/text.txt", tmp_path)


@pytest.mark.parametrize("name", ["moved.txt", "unsized.txt"])
def test_redirects_and_unknown_lengths_are_followed(server: tuple[str, list[str]], tmp_path: Path, name: str) -> None:
    assert download(f"{server[0]}/{name}", tmp_path).read_bytes() == BODY


def test_progress_goes_to_stderr(
    server: tuple[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download(f"{server[0]}/text.txt", tmp_path, show_progress=True)
    captured = capsys.readouterr()
    assert "download" in captured.err
    assert captured.out == ""


def test_a_right_sum_is_accepted_in_any_case(server: tuple[str, list[str]], tmp_path: Path) -> None:
    sha256 = hashlib.sha256(BODY).hexdigest()
    assert download(f"{server[0]}/text.txt", tmp_path, sha256=sha256.upper()).read_bytes() == BODY


def test_a_wrong_sum_names_both_sums_and_keeps_nothing(server: tuple[str, list[str]], tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DataError) as error:
        download(f"{server[0]}/text.txt", tmp_path, sha256=wrong)
    assert f"data.sha256 is {wrong}" in str(error.value)
    assert hashlib.sha256(BODY).hexdigest() in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_kept_file_with_another_sum_is_downloaded_again(server: tuple[str, list[str]], tmp_path: Path) -> None:
    path = download(f"{server[0]}/text.txt", tmp_path)
    path.write_bytes(b"damaged")
    again = download(f"{server[0]}/text.txt", tmp_path, sha256=hashlib.sha256(BODY).hexdigest())
    assert again.read_bytes() == BODY


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.txt", "404"),
        ("circle.txt", "would lead to an infinite loop. The last 30x error message was: Found"),
        ("truncated.txt", f"after {len(BODY):,} of {len(BODY) + 1:,} bytes"),
        ("empty.txt", "an empty file"),
        ("stalls.txt", "no answer in time"),
        ("with space.txt", "URL can't contain"),
    ],
)
def test_a_failed_download_says_what_happened_and_keeps_nothing(
    server: tuple[str, list[str]], tmp_path: Path, name: str, reason: str
) -> None:
    url = f"{server[0]}/{name}"
    with pytest.raises(DataError, match=reason) as error:
        download(url, tmp_path, timeout_seconds=0.3)
    assert url in str(error.value)
    assert "data.source=FILE" in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_broke_off_begins_anew_and_is_whole(server: tuple[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / ".part-0").write_bytes(BODY[:10])  # of a process that was killed
    with pytest.raises(DataError, match=f"the connection ended after {len(BODY) // 2:,} of {len(BODY):,} bytes"):
        download(f"{server[0]}/flaky.txt", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".part-0"]
    path = download(f"{server[0]}/flaky.txt", tmp_path)
    assert path.read_bytes() == BODY
    assert server[1] == ["/flaky.txt", "/flaky.txt"]
    assert {path.name for path in tmp_path.iterdir()} == {".part-0", path.name}


def test_an_address_of_a_compressed_text_is_a_source_like_any_other(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    url = f"{server[0]}/packed.txt.gz"
    config = DataConfig(source=[url, url], val_source=url, cache_dir=str(tmp_path))
    found = resolve_sources(config, report=lambda line: None)
    assert [source.name for source in found.train] == [source.name for source in found.val] == [url]
    assert "".join(read_text(found.train[0])).encode() == BODY
    assert server[1] == ["/packed.txt.gz"]


def test_the_setting_that_named_the_address_is_told(server: tuple[str, list[str]], tmp_path: Path) -> None:
    for options in ({}, {"sha256": "0" * 64}):
        name = "text.txt" if options else "missing.txt"
        with pytest.raises(DataError, match=r"^data\.val_source: ") as error:
            download(f"{server[0]}/{name}", tmp_path, setting="data.val_source", **options)
        assert "data.source" not in str(error.value)


def test_without_a_server_the_reason_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(DataError, match=r"refused.*data\.source=FILE"):
        download(f"http://127.0.0.1:{port}/text.txt", tmp_path)


def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/text.txt"
        with pytest.raises(DataError, match="no answer in time"):
            download(url, tmp_path, timeout_seconds=0.3)


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.cache_dir"):
        download("http://127.0.0.1:9/text.txt", tmp_path / "file" / "downloads")

"""Names on Hugging Face's hub, without the network: what is taken for one, and what is said when it cannot be had."""

import socket
import sys
from pathlib import Path

import pytest

from errors import CheckpointError
from interop.hub import fetch, is_hub_name


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "distilgpt2", "openai-community/gpt2", "a/b.c-d"])
def test_a_name_of_the_hub_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(name)
    (tmp_path / name.partition("/")[0]).mkdir()
    assert not is_hub_name(name), "what is on this machine is meant"


@pytest.mark.parametrize(
    "name", ["quickstart", "runs/quickstrat", "a/b/c", "/a/b", "./a", "../a/b", "~/a", "a/", "é/b"]
)
def test_a_mistyped_run_never_asks_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_hub_name(name)


def test_without_a_network_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    huggingface_hub.close_session()  # which may have been opened with proxies
    with socket.socket() as held:  # a port that nobody listens at
        held.bind(("127.0.0.1", 0))
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{held.getsockname()[1]}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(
            CheckpointError, match=r"^nobody/nothing: no such run or folder, and .*download its files"
        ) as error:
            fetch("nobody/nothing", timeout_seconds=1)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["ProxyError", "ReadTimeout", "RemoteProtocolError"])
def test_whatever_goes_wrong_on_the_way_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    http = pytest.importorskip("huggingface_hub.utils").httpx

    def fail(*_: object, **__: object) -> None:
        raise getattr(http, name)("first\nsecond")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=r"^nobody/nothing: .* does not give it \(first second\)"):
        fetch("nobody/nothing")


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model.safetensors.index.json", "pytorch_model.bin"], ["model.safetensors.index.json"]),
        (["pytorch_model.bin", "training_args.bin"], ["pytorch_model.bin"]),
        (["pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"],) * 2,
    ],
)
def test_weights_in_torchs_format_are_downloaded_only_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: list[str], wanted: list[str]
) -> None:
    def download(_: str, *, allow_patterns: list[str], **__: object) -> str:
        for file in filter_repo_objects(there, allow_patterns=allow_patterns):
            (tmp_path / file).touch()
        return str(tmp_path)

    from huggingface_hub.utils import filter_repo_objects

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert sorted(path.name for path in fetch("somebody/something").iterdir()) == wanted


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="needs: pip install huggingface_hub"):
        fetch("openai-community/gpt2")

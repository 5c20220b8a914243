"""Names on Hugging Face's hub, without the network: what is taken for one, and what is said when it cannot be had."""

import builtins
import time
from pathlib import Path
from typing import Any

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


def test_without_a_network_one_line_says_so_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    started = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"^nobody/nothing: no such run or folder, and .*download its files"
    ) as error:
        fetch("nobody/nothing", timeout_seconds=1)
    assert time.monotonic() - started < 20
    assert len(str(error.value).splitlines()) == 1


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CheckpointError, match="needs: pip install huggingface_hub"):
        fetch("openai-community/gpt2")

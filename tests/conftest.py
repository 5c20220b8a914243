"""A tiny text, and tiny models trained on it: two layers, d_model 16, windows of 8."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from browser import find_browser, open_browser, open_page
from playwright.sync_api import Browser, Page
from torch.nn.utils import clip_grad_norm_
from wandb_server import WandbServer

from config.load import load_config
from config.schema import Config
from data.dataset import open_split, sample_batch
from data.prepare import PreparedData, prepare
from engine.checkpoint import save_to_run
from engine.lock import RunLock
from engine.new_run import create_run
from engine.optim import rate_factor
from engine.run_folder import RunFolder
from engine.runtime import choose_runtime
from engine.state import TrainingState
from model import next_token_loss

TEXT = "".join(f"{n} sheep and {n * n} goats,\n" for n in range(60))
SETTINGS = (
    "model.context_length=8",
    "model.d_model=16",
    "model.num_heads=2",
    "model.num_layers=2",
    "train.batch_size=4",
    "train.max_steps=20",
    "optim.warmup_steps=3",
    "runtime.device=cpu",
    "runtime.precision=fp32",
    "runtime.compile=false",
    "tracking.wandb=disabled",
)


@dataclass(frozen=True)
class Tiny:
    """Tiny configs, training states and runs in one folder."""

    folder: Path

    def config(self, *overrides: str) -> Config:
        """The tiny settings, then the overrides."""
        text = self.folder / "text.txt"
        text.write_text(TEXT, encoding="utf-8", newline="")
        places = (f"data.source={text}", f"data.cache_dir={self.folder / 'cache'}", f"runs_dir={self.folder / 'runs'}")
        return load_config(None, [*places, *SETTINGS, *overrides])

    def prepared(self, config: Config) -> PreparedData:
        """The text of the config as tokens."""
        return prepare(config.data, report=lambda line: None)

    def state(self, *overrides: str) -> TrainingState:
        """A run before its first step."""
        config = self.config(*overrides)
        return TrainingState(config, self.prepared(config), choose_runtime(config.runtime, 0))

    def train(self, state: TrainingState, steps: int) -> list[torch.Tensor]:
        """Make steps as train.py does, and give their losses."""
        config, split = state.config, open_split(state.prepared, "train")
        state.model.train()
        losses = []
        for _ in range(steps):
            progress = state.progress.step / (config.train.max_steps or math.inf)
            state.optimizers.set_rate(rate_factor(state.progress.step, progress, config.optim))
            step_loss = torch.zeros(())
            for _ in range(config.train.grad_accum_steps):
                idx, targets = sample_batch(split, state.windows, config.train.batch_size, config.model.context_length)
                loss = next_token_loss(state.model(idx), targets) / config.train.grad_accum_steps
                torch.autograd.backward(state.scaler.scale(loss))
                step_loss += loss.detach()
            state.optimizers.unscale(state.scaler)
            grad_norm = clip_grad_norm_(state.model.parameters(), config.optim.grad_clip or float("inf"))
            state.optimizers.step(state.scaler)
            state.progress.step += 1
            state.losses.add(state.progress.step, step_loss, grad_norm)
            losses.append(step_loss)
        return losses

    def run(self, *overrides: str, name: str = "tiny") -> RunFolder:
        """A run with checkpoints of steps 1 and 2, of which the first is the best."""
        state = self.state(*overrides)
        with RunLock(print) as lock:
            run = create_run(self.folder / "runs", name, "", overwrite=False, lock=lock)
        run.start(state.config, state.prepared.tokenizer.to_json())
        for val_loss in (2.5, 3.5):
            self.train(state, 1)
            state.progress.note_evaluation(val_loss, train_loss=3.0)
            save_to_run(run, state.checkpoint({"metrics": 0, "samples": 0}), keep=2)
        return run


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    return Tiny(tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser, without a window; where there is none, a reason to skip, or with REQUIRE_BROWSER=1 to fail."""
    if find_browser() is None:
        assert os.environ.get("REQUIRE_BROWSER") != "1", "no Chromium on this machine, and REQUIRE_BROWSER=1"
        pytest.skip("no Chromium on this machine")
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in it, which reports no error."""
    with open_page(browser) as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[WandbServer]:
    """A server of Weights & Biases."""
    running = WandbServer()
    yield running
    running.stop()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors gain nothing from more, and lose much where other processes want the cores too."""
    torch.set_num_threads(1)


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

"""Train a GPT on a text: a YAML recipe in, a run folder out.

The loop is `Trainer.train`; above it stands what leads to it, below it what it calls. How a model, a batch or a
checkpoint is made is not this file's business.
"""

import time

PROCESS_STARTED = time.perf_counter()  # before anything slow is imported

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from config.load import config_to_yaml
from data.paths import counted, local_path
from engine.command_line import Order, read_command_line, training_command
from engine.lock import RunLock
from engine.new_run import create_run
from engine.run_folder import RunFolder
from errors import EXIT_INTERRUPTED, UserError, command_boundary, run_command

if __name__ == "__main__":
    # A mistake in the recipe is reported at once, not after the seconds that torch takes to load.
    with command_boundary() as early_arguments:
        read_command_line(early_arguments)
        import engine.loading  # noqa: F401 - within the boundary, so that Ctrl-C ends these seconds quietly, too

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from data.dataset import open_split, sample_batch
from engine.checkpoint import finish_save, go_back, load_checkpoint, save_to_run
from engine.clock import KEPT, Clock, Outlook
from engine.dashboard import start_dashboard, wandb_mode
from engine.ending import say_finished, say_goodbye
from engine.generation import continuation
from engine.optim import rate_factor
from engine.peak import peak_flops
from engine.processes import Processes, gathers_only, processes_from_environment
from engine.runtime import choose_device, choose_runtime, compile_model
from engine.start import describe, inherit, prepare_text, report_changes, resolved
from engine.state import TrainingState
from engine.stopping import StopRequest, explain_out_of_memory
from engine.tensorboard import start_event_file
from engine.tracking import Console, Tracker, duration
from evaluate import TOKENS_PER_BATCH, Evaluation, evaluate
from interop.opening import load_base
from model import count_parameters, flops_per_token, next_token_loss

SAMPLE_TOKENS = 200  # of the text written at each evaluation
DRY_RUN_STEPS = KEPT + 1  # made for the estimate; the first, which is slower, is forgotten
REHEARSED_TOKENS = 20  # of a sample, timed where the run must end on time
FIRST_SAVE_SHARE = 1 / 3  # of later ones: optimizers come to hold up to two numbers for each weight


def main(arguments: Sequence[str]) -> int:
    """The command: what was asked for, by the only one that trains in its run folder."""
    order = read_command_line(arguments)
    processes = processes_from_environment()
    console = Console(quiet=order.quiet, silent=not processes.is_main)
    with RunLock(console.warn) as lock:
        if order.resumed is not None and processes.is_main and not order.dry_run:
            lock.take(order.resumed.path)
        return set_out(order, processes, console=console, lock=lock)


def set_out(order: Order, processes: Processes, *, console: Console, lock: RunLock) -> int:
    """From the order to the state that a run starts with, and on to its end; the exit code."""
    config, resumed, base = order.config, None, None
    if order.resumed is not None:
        resumed = load_checkpoint(order.checkpoint or order.resumed.find("last"), offer=order.resume_instead)
        report_changes(resumed.config, config, console.say)
    elif config.train.init_from is not None:
        base = load_base(config, console.say)
        config = inherit(config, base, console.say)
    with processes.together(choose_device(config.runtime.device, processes.local_rank_or_none)):
        prepared = prepare_text(config, base or resumed, processes=processes, console=console)
        num_parameters = count_parameters(config.model, prepared.tokenizer.vocab_size)
        runtime = choose_runtime(config.runtime, num_parameters, processes.local_rank_or_none)
        config = resolved(config, prepared, runtime)
        wandb_mode(config)  # a wrong WANDB_MODE is reported before there is a run folder
        # In all processes at the same time, as training is: to agree on the text they have waited for each other.
        peak = processes.sum([peak_flops(runtime)])[0]
        describe(config, prepared, runtime=runtime, peak=peak, processes=processes, console=console)
        with explain_out_of_memory(config):
            state = TrainingState(config, prepared, runtime, processes)
            if resumed is not None:
                state.restore(resumed)
            if base is not None:
                state.start_from(base)
            file_sizes = resumed.progress["file_sizes"] if resumed else None
            del resumed, base  # the state has its own copy
            return carry_out(order, Trainer(state, console, peak=peak), file_sizes=file_sizes, lock=lock)


def carry_out(order: Order, trainer: "Trainer", *, file_sizes: dict[str, int] | None, lock: RunLock) -> int:
    """Do what was asked for; the exit code. `file_sizes` are those of a run that is resumed."""
    state, config = trainer.state, trainer.config
    is_main = state.processes.is_main
    if order.dry_run:
        seconds, steps = (0.0, 0) if state.is_finished() else trainer.estimate()
        if is_main:
            print(config_to_yaml(config), end="")
            print(f"\nestimated duration: {duration(seconds)}, {counted(steps, 'step')}")
        return 0
    run = order.resumed
    if run is not None and state.is_finished():
        if is_main:
            finish_save(run, vars(state.progress), keep=config.train.keep_checkpoints)
            say_finished(run, state, order)
        return 0
    if run is None and is_main:
        run = create_run(local_path(config.runs_dir), config.name, order.stem, overwrite=order.overwrite, lock=lock)
    elif run is not None and is_main:
        go_back(run, vars(state.progress), trainer.console.warn)
    exit_code = trainer.run(run if is_main else None, file_sizes=file_sizes)
    if run is not None and is_main:
        say_goodbye(run, state, quiet=order.quiet)
    return exit_code


class Trainer:
    """Takes a run from its state to its end, and keeps what it learns in the run folder.

    `peak` is what all devices together do at best, in floating-point operations per second.
    """

    folder: RunFolder | None = None  # of the main process; the others write nothing
    tracker: Tracker | None = None

    def __init__(self, state: TrainingState, console: Console, *, peak: float) -> None:
        self.state = state
        self.config = state.config
        self.progress = state.progress
        self.processes = state.processes
        self.console = console
        self.tokens_per_second_at_best = peak / flops_per_token(state.config.model, state.prepared.tokenizer.vocab_size)
        self.train_split = open_split(state.prepared, "train")
        self.val_split = open_split(state.prepared, "val")
        self.clock = Clock(self.config.train, started=PROCESS_STARTED - state.progress.seconds)  # as if uninterrupted
        self.saved_step: int | None = None

    def run(self, folder: RunFolder | None, *, file_sizes: dict[str, int] | None) -> int:
        """Train within a run folder; the exit code. `file_sizes` come from the checkpoint of a run that is resumed."""
        self.folder = folder
        if folder is not None:
            folder.start(self.config, self.state.prepared.tokenizer.to_json())
            self.console.say(f"run      {folder.path}")
            self.tracker = Tracker(folder, file_sizes)
            self.tracker.event_file = start_event_file(self.config, folder, self.progress.step, file_sizes)
        exit_code = 1  # as the dashboard shows it where an error ends the run
        with StopRequest(self.console.warn) as stop:  # also while files and dashboard are closed
            try:
                if file_sizes is not None:
                    self.forget_lost_best()
                if file_sizes is None or self.clock.max_seconds is not None:
                    # So that, whatever comes, the run can be resumed, and to know how long it takes.
                    share = FIRST_SAVE_SHARE if self.progress.step == 0 else 1.0
                    self.clock.rehearse("save", self.save, share=share, times=1)
                self.rehearse()
                if folder is not None and self.tracker is not None:
                    self.tracker.dashboard = start_dashboard(self.config, folder, self.console.say)
                self.console.start_bar(self.config.train, self.progress.step, self.clock.seconds)
                self.train(stop)
                exit_code = 0 if self.state.is_finished() else EXIT_INTERRUPTED
            finally:
                self.console.stop_bar()
                if self.tracker is not None:
                    self.tracker.close(exit_code)
        return exit_code

    def forget_lost_best(self) -> None:
        """Where the best checkpoint so far is gone (the run goes on from an earlier one), look for a new best."""
        progress, folder = self.progress, self.folder
        is_lost = folder is not None and not (
            progress.best_step is None or folder.checkpoint_file(progress.best_step).is_file()
        )
        if self.processes.any(is_lost):
            self.console.warn(
                f"the best checkpoint, of step {progress.best_step}, is gone; the next evaluation is the best"
            )
            progress.best_step, progress.best_val_loss = None, math.inf

    def train(self, stop: StopRequest) -> None:
        """The training loop: update, log, evaluate and save, until the last step or until somebody asks to stop."""
        train, state, progress = self.config.train, self.state, self.progress
        shape = (train.batch_size, self.config.model.context_length)
        forward = self.processes.wrap(compile_model(state.model, state.runtime, shape))
        if progress.step == 0:
            progress.seconds_before_training = self.clock.seconds
        self.clock.start_training(progress.step, progress.seconds_before_training)
        outlook = self.look_ahead(stop)
        if outlook.is_last:
            self.come_late()
        while not state.is_finished() and not (outlook.stops or (self.processes.is_alone and stop.requested)):
            grad_norm = self.update(forward, outlook.progress)
            self.console.advance(progress.step, self.clock.seconds)
            outlook = self.look_ahead(stop)

            # What there is to tell and to keep. Nothing below touches the generators of training.
            step = progress.step
            if outlook.is_last and not state.is_out_of_steps():
                progress.minutes_used_up = train.max_minutes or 0.0
            evaluates = outlook.is_last or (step % train.eval_interval == 0 and outlook.has_room)
            logs = evaluates or step % train.log_interval == 0
            saves = train.checkpoint_interval is not None and step % train.checkpoint_interval == 0
            saves = evaluates or (saves and outlook.has_room_to_save)
            if logs or saves or state.runtime.device.type == "cpu":
                self.check_finite()
            if logs:
                metrics = self.training_metrics(grad_norm)
                if evaluates:
                    metrics |= self.evaluate(metrics["train/loss"])
                self.log(metrics)
            if evaluates:
                self.write_sample()
            if saves:
                self.save()
        if self.saved_step != progress.step:
            self.check_finite()
            self.save()

    def rehearse(self) -> None:
        """Where the run must end on time, time pieces of what its end will take, until the evaluations tell it."""
        if self.clock.max_seconds is None:
            return
        whole, tokens_per_batch = self.eval_tokens, TOKENS_PER_BATCH[self.state.runtime.device.type]
        piece = min(whole, 2 * tokens_per_batch * self.processes.world_size)
        self.clock.rehearse("evaluation", lambda: self.measure_val(piece), share=piece / whole)
        if self.tracker is not None:
            written = partial(self.written, REHEARSED_TOKENS, may_end=False)
            self.clock.rehearse("sample", written, share=REHEARSED_TOKENS / SAMPLE_TOKENS)

    @property
    def eval_tokens(self) -> int:
        """How many tokens an evaluation is to predict."""
        return min(len(self.val_split) - 1, self.config.train.eval_tokens or len(self.val_split))

    def come_late(self) -> None:
        """Say that there is no time for a step. A new run makes one all the same; one that is resumed is over."""
        self.console.warn(f"time     {self.clock.lack_of_time(eval_tokens=self.eval_tokens)}")
        if self.progress.step > 0:
            self.progress.minutes_used_up = self.config.train.max_minutes or 0.0
            self.saved_step = None  # what was saved before does not know it

    def look_ahead(self, stop: StopRequest) -> Outlook:
        """What comes after this step, for all processes the same."""
        step, runtime = self.progress.step, self.state.runtime
        if runtime.device.type == "cpu" or self.clock.is_due(step):
            runtime.synchronize()
            self.clock.arrive(step)
        return self.clock.outlook(step, stops=stop.requested).agreed(self.processes)

    def update(self, forward: nn.Module, progress: float = 0.0) -> torch.Tensor:
        """One step: the mean gradient of all micro-steps, then one update of the weights. Returns the gradient norm."""
        train, state = self.config.train, self.state
        state.model.train()
        state.optimizers.set_rate(rate_factor(self.progress.step, progress, self.config.optim))
        step_loss = torch.zeros((), device=state.runtime.device)
        for micro_step in range(1, train.grad_accum_steps + 1):
            idx, targets = self.next_batch()
            with nullcontext() if micro_step == train.grad_accum_steps else gathers_only(forward):
                with state.runtime.autocast():
                    loss = next_token_loss(forward(idx), targets) / train.grad_accum_steps
                torch.autograd.backward(state.scaler.scale(loss))
            step_loss += loss.detach()
        state.optimizers.unscale(state.scaler)
        grad_norm = clip_grad_norm_(state.model.parameters(), self.config.optim.grad_clip or float("inf"))
        self.progress.overflows += not state.optimizers.step(state.scaler)
        self.progress.step += 1
        state.losses.add(self.progress.step, step_loss, None if state.scaler.is_enabled() else grad_norm)
        return grad_norm

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random windows of the training split on the device: idx and targets, (B, T).

        All processes draw the same windows for all, and each takes its rows.
        """
        train, context_length = self.config.train, self.config.model.context_length
        all_rows = train.batch_size * self.processes.world_size
        mine = slice(self.processes.rank * train.batch_size, (self.processes.rank + 1) * train.batch_size)
        idx, targets = sample_batch(self.train_split, self.state.windows, all_rows, context_length, rows=mine)
        device = self.state.runtime.device
        if device.type == "cuda":  # from pinned memory the copy runs beside the computation
            idx, targets = idx.pin_memory(), targets.pin_memory()
        return idx.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def check_finite(self, val_loss: float = 0.0) -> None:
        """Raise `UserError` where a loss or gradient was not finite; the weights since then are never saved."""
        bad_step = self.state.losses.bad_step() if math.isfinite(val_loss) else self.progress.step
        if bad_step is None:
            return
        if self.folder is None:
            raise UserError(
                f"process {self.processes.rank}, step {bad_step}: the loss or a gradient is not finite; "
                "process 0 says how to go on"
            )
        last = self.folder.find("last")
        lower = [f"{name}={value / 4:g}" for name, value in self.state.optimizers.rates_in_use().items()]
        raise UserError(
            f"step {bad_step}: the loss or a gradient is not finite; the last good checkpoint is {last}; "
            f"go on from it more carefully, say: {training_command('--resume', self.folder.path, *lower)}"
        )

    def training_metrics(self, grad_norm: torch.Tensor) -> dict[str, float]:
        """What the steps since the last call have shown."""
        # Waits for the device, so the clock is read after it.
        loss = self.processes.mean(self.state.losses.take_mean())
        seconds, steps = self.clock.lap(self.progress.step)
        tokens_per_second = steps * self.state.tokens_per_step / max(seconds, 1e-9)
        metrics = {
            "train/loss": loss,
            "optim/learning_rate": self.state.optimizers.learning_rate,
            "optim/grad_norm": grad_norm.item(),
            "perf/tokens_per_second": tokens_per_second,
            "perf/mfu": tokens_per_second / self.tokens_per_second_at_best,
        }
        peak_memory = self.state.runtime.peak_memory()
        if peak_memory is not None:
            metrics["perf/memory_mib"] = peak_memory / 2**20  # of this process alone
        if self.state.scaler.is_enabled():
            metrics["optim/overflows"] = self.progress.overflows
        return metrics

    def evaluate(self, train_loss: float) -> dict[str, float]:
        """Measure val loss, and note whether it is the best so far."""
        with self.clock.measure("evaluation"):
            result = self.measure_val(self.config.train.eval_tokens)
        self.check_finite(result.loss)  # what the last update spoilt, no training loss has shown yet
        self.progress.note_evaluation(result.loss, train_loss)
        return {"val/loss": result.loss, "val/bits_per_char": result.bits_per_char}

    def measure_val(self, max_tokens: int | None) -> Evaluation:
        """Val loss over the split's first `max_tokens` tokens."""
        state, split = self.state, self.val_split
        tokenizer, runtime = state.prepared.tokenizer, state.runtime
        return evaluate(state.model, split, tokenizer, runtime, max_tokens=max_tokens, processes=self.processes)

    def log(self, metrics: dict[str, float]) -> None:
        """Keep the metrics of this step, and show them."""
        progress, train = self.progress, self.config.train
        progress.seconds = self.clock.seconds
        if self.tracker is not None:
            self.tracker.log(progress.step, {**metrics, "perf/seconds": progress.seconds})
        self.console.show(
            progress.step,
            train,
            metrics,
            is_best=progress.best_step == progress.step,
            seconds=progress.seconds,
            seconds_left=self.clock.expected_seconds_left(progress.step),
        )
        if "val/loss" in metrics and progress.is_overfitting(metrics["train/loss"]):
            progress.overfitting_said = True
            self.console.warn_of_overfitting(progress.best_step)

    def write_sample(self) -> None:
        """Let the model write a little, the same way at every evaluation."""
        if self.tracker is None:
            return
        with self.clock.measure("sample"):
            text = self.written(SAMPLE_TOKENS)
        self.tracker.sample(self.progress.step, text)
        self.console.show_sample(text)

    def written(self, num_tokens: int, *, may_end: bool = True) -> str:
        """What the model writes, the same way every time; where it may not end, so many tokens."""
        prompt, seed, state = self.config.train.sample_prompt or "", self.config.seed, self.state
        return prompt + continuation(
            state.model, state.prepared, prompt, seed=seed, num_tokens=num_tokens, may_end=may_end
        )

    def save(self) -> None:
        """Write a checkpoint of this moment."""
        self.progress.seconds = self.clock.seconds
        with self.clock.measure("save"):
            checkpoint = self.state.checkpoint(self.tracker.file_sizes() if self.tracker is not None else {})
            if self.folder is not None:
                save_to_run(self.folder, checkpoint, keep=self.config.train.keep_checkpoints)
        self.saved_step = self.progress.step

    def estimate(self) -> tuple[float, int]:
        """Seconds and steps that are left of the run, by its next few steps and one evaluation, made and lost."""
        step = self.progress.step
        for _ in range(DRY_RUN_STEPS):
            with self.clock.measure("step"):
                self.update(self.state.model)
                self.state.runtime.synchronize()
        self.evaluate(train_loss=0.0)
        seconds, eval_interval = self.progress.seconds, self.config.train.eval_interval
        return self.clock.estimate(step, seconds=seconds, eval_interval=eval_interval)


if __name__ == "__main__":
    run_command(main)

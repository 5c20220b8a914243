"""The run for TensorBoard: event files in its folder, where `tracking.tensorboard` asks for them.

Written by TensorBoard's own parts rather than by torch's SummaryWriter: that writes in a thread, which shows a
traceback where the disk is full, and loads TensorFlow where there is one. No torch here: a library that is missing is
reported at once.
"""

import contextlib
import importlib.util
import os
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from config.load import config_to_yaml
from config.schema import Config
from engine.files import refused
from engine.run_folder import RunFolder
from errors import ConfigError

NAME_START = "events.out.tfevents."  # by which TensorBoard knows its files; it reads them in the order of their names
FILE_VERSION = "brain.Event:2"  # the first event of every file


class EventFile:
    """What TensorBoard shows of one process. Whatever is written can be read at once."""

    def __init__(self, path: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path = path
        try:
            path.parent.mkdir(exist_ok=True)
            self.file = path.open("ab")
        except OSError as error:
            raise refused(path, error) from error
        self.records = RecordWriter(self.file)

    def start(self, step: int) -> None:
        """Begin after a step: a TensorBoard that is open forgets what it has seen of later ones."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self.write(0, file_version=FILE_VERSION)
        self.write(step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step, each under its name."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self.write(step, summary=Summary(value=values))

    def show_text(self, step: int, name: str, text: str) -> None:
        """Keep a text of a step. TensorBoard takes it for Markdown, where indented lines are shown as they are."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self.write(step, summary=text_pb(name, textwrap.indent(text, " " * 4, lambda line: True)))

    def write(self, step: int, **content: Any) -> None:
        """Append an event of now."""
        from tensorboard.compat.proto.event_pb2 import Event

        try:
            self.records.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
            self.file.flush()
        except OSError as error:
            raise refused(self.path, error) from error

    def close(self) -> None:
        """No more is written. What a full disk has refused is refused again here, and was reported then."""
        with contextlib.suppress(OSError):
            self.file.close()


def check_tensorboard(config: Config) -> None:
    """Raise `ConfigError` where `tracking.tensorboard` asks for a library that is not installed."""
    if config.tracking.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tracking.tensorboard: the library is missing; pip install tensorboard")


def start_event_file(
    config: Config, folder: RunFolder, step: int, file_sizes: Mapping[str, int] | None
) -> EventFile | None:
    """The event file of this process, with the settings in it; None where `tracking.tensorboard` is off.

    `file_sizes` are those of the checkpoint from which a run is resumed. What was written after it goes, even where
    nothing more is written: it would contradict the steps that are made again.
    """
    if file_sizes is not None:
        take_back(folder, file_sizes if step > 0 else {})  # before the first step there are only the old settings
    if not config.tracking.tensorboard:
        return None
    file = EventFile(folder.tensorboard / f"{NAME_START}{time.time_ns()}")
    file.start(step)
    file.show_text(step, "config", config_to_yaml(config))
    return file


def take_back(folder: RunFolder, file_sizes: Mapping[str, int]) -> None:
    """Give the event files the sizes that they had.

    Files that were not there become empty and stay: a TensorBoard that is open may hold them.
    """
    for path in event_files(folder):
        size = file_sizes.get(key_of(path), 0)
        try:
            if size < path.stat().st_size:
                os.truncate(path, size)
        except OSError as error:
            raise refused(path, error) from error


def synced_event_sizes(folder: RunFolder) -> dict[str, int]:
    """The sizes in bytes of all event files of the run, all of them safely on the disk."""
    sizes = {}
    for path in event_files(folder):
        try:
            with path.open("ab") as file:
                os.fsync(file.fileno())
                sizes[key_of(path)] = file.tell()
        except OSError as error:
            raise refused(path, error) from error
    return sizes


def event_files(folder: RunFolder) -> list[Path]:
    """The event files of a run, oldest first."""
    return sorted(folder.tensorboard.glob(f"{NAME_START}*"))


def key_of(path: Path) -> str:
    """What an event file is called in a checkpoint."""
    return f"{path.parent.name}/{path.name}"

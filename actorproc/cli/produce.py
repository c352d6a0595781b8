"""`actorproc produce`: appends the records of a file or of stdin to a log, with a progress bar."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import anyio
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from actorproc.cli.common import load_settings, run_async, shown_settings
from actorproc.cli.produce_end import Resume, explained, interrupted, show_bad_lines
from actorproc.cli.streams import conclude
from actorproc.cli.terminal import SafeConsole, counted
from actorproc.cli.workers import end_soon
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.input_csv import CsvRows
from actorproc.log.input_formats import InputFormat, JsonLines, LineReader, TextLines
from actorproc.log.input_producer import InputProducer, OnBadLine, Produced
from actorproc.log.producer import Producer
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import SAME_SIGNAL_TIME
from actorproc.runtime.tasks import first_cause

FormatName = Literal["json", "text", "csv"]

_FORMAT_OF: dict[str, FormatName] = {
    "--key": "json",
    "--key-regex": "text",
    "--key-column": "csv",
    "--timestamp-field": "json",
    "--timestamp-column": "csv",
}
"""Options that name the key or the time of a record, each for one format."""


def choose_format(file: str, name: FormatName | None, options: Collection[str]) -> FormatName:
    """The format of a file.

    Args:
        name: as given by --format.
        options: those of `_FORMAT_OF` that are given.

    Raises:
        UsageError: the options do not go together.
    """
    wanted: dict[FormatName, str] = {_FORMAT_OF[option]: option for option in options}
    if len(wanted) > 1:
        raise UsageError("; ".join(f"{option} is for {known}" for known, option in wanted.items()) + ": choose one")
    by_name: FormatName = "csv" if file.lower().endswith(".csv") else next(iter(wanted), "text")
    chosen = name or by_name
    for meant, option in wanted.items():
        if meant != chosen:
            right = [known for known, other in _FORMAT_OF.items() if other == chosen and known[:5] == option[:5]]
            ways = ", or ".join([*right, f"--format {meant}"])
            raise UsageError(f"{option} is for {meant}, and the input is {chosen}: give {ways}")
    return chosen


def _open_format(name: FormatName, lines: LineReader, options: Mapping[str, str]) -> InputFormat:
    if name == "text":
        return TextLines(lines, options.get("--key-regex"))
    if name == "csv":
        return CsvRows(lines, options.get("--key-column"), options.get("--timestamp-column"))
    return JsonLines(lines, options.get("--key"), options.get("--timestamp-field"))


def run(
    file: str,
    log: str,
    partitions: int | None,
    format_name: FormatName | None,
    fields: Mapping[str, str],
    rate: float | None,
    on_bad_line: OnBadLine,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Append the records. `fields`: the options of `_FORMAT_OF` that are given, with their values."""
    settings = load_settings(config, given)
    name = choose_format(file, format_name, fields)
    options = {**fields, "--rate": None if rate is None else f"{rate:.15g}", "--config": config}
    words = [part for option, value in options.items() if value is not None for part in (option, str(value))]
    words += ["--format", name] if format_name is not None or (name == "csv" and not fields) else []
    words += [*(["--on-bad-line", on_bad_line] if on_bad_line != "fail" else []), *shown_settings(given or [])]
    input_producer = InputProducer(rate=rate, on_bad_line=on_bad_line)
    resume = Resume(file, log, words)

    async def work() -> str | None:
        reading, everything = anyio.CancelScope(), anyio.CancelScope()
        with _lines(file) as (lines, size), _progress(size) as progress:
            records = _open_format(name, lines, fields)
            began = SYSTEM.monotonic()
            with everything:
                async with (
                    Producer(log, partitions=partitions, partitioner="round-robin", settings=settings) as producer,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(_cancel_on_signals, reading, everything)
                    try:
                        with reading:
                            await input_producer.run(records, producer, progress)
                    except ActorprocError:
                        with suppress(ActorprocError):  # it has the same cause
                            await producer.flush()  # here, where signals are handled
                        raise
                    finally:
                        resume.header_lines = records.header_lines
                    await producer.flush()
                    tasks.cancel_scope.cancel()
            seconds = SYSTEM.monotonic() - began
        if reading.cancelled_caught or everything.cancelled_caught:
            return None
        return _summary(input_producer.produced, seconds, log)

    try:
        try:
            summary = run_async(work)
        finally:
            show_bad_lines(file, input_producer)
    except (ActorprocError, ExceptionGroup) as errors:
        error = first_cause(errors)
        if not isinstance(error, ActorprocError):
            raise
        raise explained(error, input_producer.delivered(), resume) from None
    if summary is None:
        delivered = input_producer.delivered()
        summary = interrupted(delivered, resume)
        if file != "-" or delivered.doubtful:  # a stream has no end
            raise ActorprocError(summary)
    conclude(summary)


async def _cancel_on_signals(reading: anyio.CancelScope, everything: anyio.CancelScope) -> None:
    """The first signal cancels `reading`; records that were read are appended. A second one cancels `everything`."""
    first: float | None = None
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if first is None:
                first = SYSTEM.monotonic()
                reading.cancel()
            elif SYSTEM.monotonic() - first >= SAME_SIGNAL_TIME:
                end_soon()  # the disk may hang
                everything.cancel()


class _Input:
    """A file or pipe that is read in a thread. `wake` ends a read, or the thread would keep the process alive."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._woken, self._wake = os.pipe()  # never closed: the thread may still use it

    def read1(self, size: int, /) -> bytes:
        ready, _, _ = select.select([self._descriptor, self._woken], [], [])
        try:
            return b"" if self._woken in ready else os.read(self._descriptor, size)
        except OSError as error:
            raise ActorprocError(f"cannot read {self._name}: {error.strerror}") from None

    def wake(self) -> None:
        """End the read that is under way."""
        os.write(self._wake, b"!")


@contextmanager
def _lines(file: str) -> Iterator[tuple[_Input, int | None]]:
    """The opened file, and its size in bytes if it is known."""
    path = Path(file)
    if file == "-" and sys.stdin is None:  # it was closed when the process started
        raise UsageError("cannot read -: stdin is closed")
    try:
        opened = sys.stdin.buffer if file == "-" else path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    with opened:
        lines = _Input(file, opened.fileno())
        try:
            yield lines, path.stat().st_size if file != "-" and path.is_file() else None
        finally:
            lines.wake()


@contextmanager
def _progress(size: int | None) -> Iterator[Callable[[Produced], None]]:
    """A progress bar on stderr, if that is a terminal: bytes, events and events per second."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = [BarColumn(), DownloadColumn(), TextColumn("{task.fields[events]}"), TimeElapsedColumn()]
    with Progress(*columns, *([TimeRemainingColumn()] if size else []), console=console, transient=True) as progress:
        task = progress.add_task("", total=size, events="")

        def show(sent: Produced) -> None:
            seconds = progress.tasks[0].elapsed or 0
            rate = f", {sent.records / seconds:,.0f}/s" if seconds else ""
            progress.update(task, completed=sent.bytes, events=counted(sent.records, "event") + rate)

        yield show


def _summary(produced: Produced, seconds: float, log: str) -> str:
    rate = produced.records / seconds if seconds else 0
    lines = [f"{counted(produced.records, 'event')} appended to {log} in {seconds:.1f} s, {rate:,.0f} per second"]
    counts = sorted(produced.partitions.items(), key=lambda item: int(item[0]))
    lines.append("by partition: " + (", ".join(f"{name}: {count:,}" for name, count in counts) or "none"))
    if (null := produced.unkeyed - produced.kept) > 0:
        lines.append(f"{null:,} without a key: it is null or empty")
    if produced.kept:
        lines.append(f"{counted(produced.kept, 'bad line')} appended without a key")
    if produced.skipped:
        lines.append(f"{counted(produced.skipped, 'bad line')} skipped")
    return "\n".join(lines)

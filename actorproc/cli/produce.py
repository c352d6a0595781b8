"""`actorproc produce`: appends the lines of a file or of stdin to a log, with a progress bar."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from actorproc.cli.common import load_settings, run_async, shown_settings
from actorproc.cli.produce_end import BadLines, explained, interrupted
from actorproc.cli.streams import conclude
from actorproc.cli.terminal import counted
from actorproc.cli.workers import end_soon
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.line_producer import LineReader, OnBadLine, Produced, first_checked, produce_lines
from actorproc.log.producer import Producer
from actorproc.log.resume_point import Account
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.signals import SAME_SIGNAL_TIME
from actorproc.runtime.tasks import first_cause


def run(
    file: str,
    log: str,
    partitions: int | None,
    key: str | None,
    rate: float | None,
    on_bad_line: OnBadLine,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Append the lines."""
    settings = load_settings(config, given)
    account = Account()
    given_too = {"--key": key, "--rate": rate, "--config": config}
    more = [part for name, value in given_too.items() if value is not None for part in (name, str(value))]
    more += [*(["--on-bad-line", on_bad_line] if on_bad_line != "fail" else []), *shown_settings(given or [])]
    bad_lines = BadLines(file)

    async def work() -> str | None:
        with _lines(file) as (lines, size), _progress(size) as progress:
            checked: LineReader = lines
            if key is not None and partitions is not None and on_bad_line == "fail" and file != "-":
                # The number of partitions is for good: a log is not made for a key that is misspelt. (A stream may be silent for
                # long, and whoever reads the log wants to begin.)
                with anyio.CancelScope() as reading:
                    async with _heeding_signals(reading, reading):
                        checked = await first_checked(lines, key)
                if reading.cancelled_caught:
                    return None
            began = SYSTEM.monotonic()
            reading = anyio.CancelScope()
            with anyio.CancelScope() as everything:
                async with (
                    Producer(log, partitions=partitions, partitioner="round-robin", settings=settings) as producer,
                    _heeding_signals(reading, everything),
                ):
                    try:
                        with reading:
                            produced = await produce_lines(
                                producer, checked, key=key, rate=rate, on_bad_line=on_bad_line, tell=bad_lines.add,
                                progress=progress, account=account,
                            )  # fmt: skip
                    except ActorprocError:
                        with suppress(ActorprocError):  # of the same cause
                            await producer.flush()  # here, where signals are heeded
                        raise
                    await producer.flush()
            seconds = SYSTEM.monotonic() - began
        if reading.cancelled_caught or everything.cancelled_caught:
            return None
        return _summary(produced, seconds, log, key)

    try:
        try:
            summary = run_async(work)
        finally:
            bad_lines.show()
    except (ActorprocError, ExceptionGroup) as errors:
        error = first_cause(errors)
        if not isinstance(error, ActorprocError):
            raise
        raise explained(error, account.appended(), file, log, more) from None
    if summary is None:
        done = account.appended()
        summary = interrupted(done, file, log, more)
        if file != "-" or done.doubtful:  # a stream has no end
            raise ActorprocError(summary)
    conclude(summary)


@asynccontextmanager
async def _heeding_signals(reading: anyio.CancelScope, everything: anyio.CancelScope) -> AsyncIterator[None]:
    """The first signal cancels `reading`: what was taken in is still appended. A second one cancels `everything`."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_signals, reading, everything)
        yield
        tasks.cancel_scope.cancel()


async def _cancel_on_signals(reading: anyio.CancelScope, everything: anyio.CancelScope) -> None:
    first: float | None = None
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if first is None:
                first = SYSTEM.monotonic()
                reading.cancel()
            elif SYSTEM.monotonic() - first >= SAME_SIGNAL_TIME:
                end_soon()  # a disk may hang
                everything.cancel()


class _Input:
    """A file or pipe to read from, in a thread that can be woken: one that waits for input would keep the process alive."""

    def __init__(self, name: str, descriptor: int) -> None:
        self._name = name
        self._descriptor = descriptor
        self._woken, self._wake = os.pipe()  # left to the end of the process: the thread may be about to look at it

    def read1(self, size: int, /) -> bytes:
        ready, _, _ = select.select([self._descriptor, self._woken], [], [])
        try:
            return b"" if self._woken in ready else os.read(self._descriptor, size)
        except OSError as error:
            raise ActorprocError(f"cannot read {self._name}: {error.strerror}") from None

    def wake(self) -> None:
        """Nobody waits for what is read from now on."""
        os.write(self._wake, b"!")


@contextmanager
def _lines(file: str) -> Iterator[tuple[_Input, int | None]]:
    """The opened file, and its size in bytes if that is known."""
    path = Path(file)
    if file == "-" and sys.stdin is None:  # as the process was started
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
    """A bar on stderr, if that is a terminal: bytes of those known, events per second."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = [BarColumn(), DownloadColumn(), TextColumn("{task.fields[events]}"), TimeElapsedColumn()]
    with Progress(*columns, *([TimeRemainingColumn()] if size else []), console=console, transient=True) as progress:
        task = progress.add_task("", total=size, events="")

        def show(sent: Produced) -> None:
            seconds = progress.tasks[0].elapsed or 0
            rate = f", {sent.records / seconds:,.0f}/s" if seconds else ""
            # Line breaks were read too, and are not counted as sent.
            progress.update(task, completed=sent.bytes + sent.records, events=counted(sent.records, "event") + rate)

        yield show


def _summary(produced: Produced, seconds: float, log: str, key: str | None) -> str:
    rate = produced.records / seconds if seconds else 0
    lines = [f"{counted(produced.records, 'event')} appended to {log} in {seconds:.1f} s, {rate:,.0f} per second"]
    counts = sorted(produced.partitions.items(), key=lambda item: int(item[0]))
    lines.append("by partition: " + (", ".join(f"{name}: {count:,}" for name, count in counts) or "none"))
    if null := produced.unkeyed - produced.kept:
        lines.append(f"{null:,} without a key: {key!r} is null")
    if produced.kept:
        lines.append(f"{counted(produced.kept, 'bad line')} appended without a key, for the handler to judge")
    if produced.skipped:
        lines.append(f"{counted(produced.skipped, 'bad line')} skipped")
    return "\n".join(lines)

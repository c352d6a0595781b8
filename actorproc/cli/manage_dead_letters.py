"""`actorproc dead-letters`: lists, shows, replays and purges."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actorproc.admin.dead_letters import (
    DeadLetters,
    Letter,
    LetterId,
    Purge,
    Replayed,
    Selection,
    refuse_source,
)
from actorproc.cli.common import OpenedProcessor, chosen_partitions, run_async, settings_of_log
from actorproc.cli.loading import names_object
from actorproc.cli.streams import escaped_line, warn
from actorproc.cli.terminal import Cells, SafeConsole, as_text, counted, print_json, print_line, print_table, print_text
from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, UsageError
from actorproc.sources.protocol import parse_time

_MOST_SHOWN = 100  # characters of a cell of the list; `show` and --json have all of them
_MOST_REASONS = 20  # of letters that are not sent
_MOST_NAME = 30  # characters to which the names of facts are padded


@asynccontextmanager
async def _letters(
    opened: OpenedProcessor, partition: str | None = None
) -> AsyncIterator[tuple[DeadLetters, Settings]]:
    async with opened as (store, layout, settings):
        if partition is not None:
            await chosen_partitions(store, layout, partition)
        yield await DeadLetters.opened(store, layout), settings


def _ids(texts: Sequence[str], **filters: object) -> frozenset[LetterId]:
    if texts and any(filters.values()):
        raise UsageError(f"give ids of letters, or {' and '.join(f'--{name}' for name in filters)}; not both")
    return frozenset(map(LetterId.parse, texts))


def show_all(
    opened: OpenedProcessor,
    partition: str | None,
    kind: str | None,
    replayed: bool,
    not_replayed: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print dead letters."""
    if replayed and not_replayed:
        raise UsageError("--replayed and --not-replayed: choose one")
    selection = Selection(
        partition=partition, kind=kind, replayed=True if replayed else False if not_replayed else None
    )

    async def work() -> None:
        async with _letters(opened, partition) as (letters, _):
            chosen = _first(letters.select(selection), limit)
            if as_json:
                async for letter in chosen:
                    print_json(letter)
            else:
                await _print_list(letters, chosen, selection, limit)
            _warn_unless_known(letters, kind)

    run_async(work)


async def _first(letters: AsyncIterator[Letter], limit: int | None) -> AsyncIterator[Letter]:
    count = 0
    async for letter in letters:
        yield letter
        count += 1
        if count == limit:
            return


async def _print_list(
    letters: DeadLetters, chosen: AsyncIterator[Letter], selection: Selection, limit: int | None
) -> None:
    marks = ["replayed"] if letters.has_replays and selection.replayed is None else []
    columns = ["letter", "time", *marks, "kind", "message", "key", "value"]
    which = {None: "no dead letters", True: "no replayed dead letter", False: "no dead letter is left to replay"}
    rows = (_row(letter, marks) async for letter in chosen)
    empty = which[selection.replayed] if selection.kind is None else ""
    count = await print_table(columns, rows, empty=empty, cut=columns[-3:])
    if count == limit:
        print_line(f"these are the first {count:,} (--limit)")
    elif count > 1 and selection.kind is None:
        print_line(f"{counted(count, 'dead letter')}: {_kinds(letters)}")


def _warn_unless_known(letters: DeadLetters, kind: str | None) -> None:
    if kind is not None and kind not in letters.kinds:
        warn(f"no dead letter of kind {kind!r}; there are: {_kinds(letters)}")


def _kinds(letters: DeadLetters) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in letters.kinds.most_common()) or "none"


def show_one(letter_id: str, opened: OpenedProcessor, as_json: bool) -> None:
    """Print one dead letter whole."""
    wanted = LetterId.parse(letter_id)

    async def work() -> None:
        async with _letters(opened) as (letters, _):
            letter = await letters.find(wanted)
        if as_json:
            print_json(letter)
        else:
            _print_whole(letter)

    run_async(work)


def replay(
    ids: Sequence[str],
    opened: OpenedProcessor,
    source: str | None,
    into: str | None,
    options: Sequence[str] | None,
    partition: str | None,
    kind: str | None,
    value: str | None,
    as_json: bool,
) -> None:
    """Append dead letters to their stream, or to the log `into`, whose `--source-option`s are the `options`.

    Exit code 1 if the stream refuses some of them, or none is of the wanted kind.
    """
    selection = Selection(_ids(ids, partition=partition, kind=kind), partition, kind)
    corrected = None if value is None else _corrected(value)
    if source is not None and into is None:
        refuse_source(f"--source {source}", source, own=names_object(source))

    async def work() -> bool:
        async with _letters(opened, partition) as (letters, settings):
            own = settings if into is None else settings_of_log(into, settings, options)
            try:
                with _progress() as progress:
                    done = await letters.replay(selection, own, source, into=into, value=corrected, progress=progress)
            except ActorprocError:
                if letters.appended:
                    warn(f"{counted(letters.appended, 'dead letter')} appended before the error")
                raise
        if as_json:
            print_json({"replayed": done.appended, "replayed_before": done.before, "refused": done.refused})
        else:
            note = f"; {done.before:,} replayed before" if done.before else ""
            print_line(f"{counted(done.appended, 'dead letter')} appended to {done.log}{note}")
            if done.appended and done.also_read_by:
                print_line(f"other readers of that log get them again: {', '.join(done.also_read_by)}")
        _warn_of_refused(done)
        _warn_unless_known(letters, kind)
        return not done.refused and (kind is None or kind in letters.kinds or not letters.kinds)

    if not run_async(work):
        raise typer.Exit(1)


def _warn_of_refused(done: Replayed) -> None:
    for letter, reason in islice(done.refused.items(), _MOST_REASONS):
        warn(f"{letter} was not sent: {reason}")
    if (more := len(done.refused) - _MOST_REASONS) > 0:
        warn(f"{more:,} others were not sent (--json shows why)")
    if done.refused:
        refused = counted(len(done.refused), "dead letter")
        warn(f"{done.log} does not take {refused}: replay with a corrected --value, or --into a log")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar of the files that are done, on stderr if that is a terminal."""
    stderr = SafeConsole(stderr=True)
    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("files of dead letters"), TimeRemainingColumn()]
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, files: bar.update(task, completed=done, total=files)


def _corrected(value: str) -> bytes:
    """The value of `--value`: text, or the content of `@FILE`.

    Raises:
        UsageError: the file cannot be read.
    """
    if not value.startswith("@"):
        return value.encode()
    try:
        return Path(value[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--value {value}: {error.strerror}") from None


def purge(
    ids: Sequence[str],
    opened: OpenedProcessor,
    partition: str | None,
    kind: str | None,
    before: str | None,
    replayed: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete dead letters, after asking. Exit code 1 if some are kept that no checkpoint has passed."""
    limit = None if before is None else parse_time("--before", before)
    selection = Selection(_ids(ids, partition=partition, kind=kind), partition, kind, replayed or None, limit)

    async def work() -> tuple[Purge, int]:
        async with _letters(opened, partition) as (letters, _):
            planned = await letters.plan_purge(selection)
            if planned.files and not yes:
                _ask(letters.processor, planned.letters)
            return planned, await letters.purge(planned)

    planned, purged = run_async(work)
    kept = planned.letters - purged
    try:
        if as_json:
            print_json({"purged": purged, "kept": kept, "held": planned.held})
        else:
            _print_purged(planned, purged, kept)
    finally:  # also if stdout cannot be written
        if kept:
            raise typer.Exit(1)


def _print_purged(planned: Purge, purged: int, kept: int) -> None:
    print_line(f"{counted(purged, 'dead letter')} purged")
    if planned.held:
        others = counted(planned.beside, "letter")
        print_line(f"{planned.held:,} held: a commit is purged as a whole, and they share one with {others} not chosen")
    if kept:
        print_line(f"{kept:,} kept: no checkpoint has passed them. Start the processor, or stop it, and try again")


def _ask(name: str, count: int) -> None:
    question = f"Delete {counted(count, 'dead letter')} of {name} for good"
    if not sys.stdin.isatty():
        raise UsageError(f"{question}? Nobody can answer: give --yes")
    typer.confirm(f"{question}?", abort=True)


def _row(letter: Letter, marks: Sequence[str]) -> Cells:
    error = letter["error"]
    time = datetime.fromisoformat(letter["time"]).strftime("%Y-%m-%dT%H:%M:%SZ")
    cells = [_shortened(error["message"]), _shortened(letter["key"]), _shortened(letter["value"])]
    return [letter["id"], time, *("yes" if letter[mark] else "" for mark in marks), letter["kind"], *cells]


def _shortened(cell: object) -> object:
    return cell[: _MOST_SHOWN - 3] + "..." if isinstance(cell, str) and len(cell) > _MOST_SHOWN else cell


def _print_whole(letter: Letter) -> None:
    error = letter["error"]
    facts = {
        "letter": letter["id"],
        "failed at": f"{letter['time']} on {letter['host']}, epoch {letter['epoch']}, attempts {letter['attempts']}",
        **({"replayed": "yes"} if letter["replayed"] else {}),
        "record of": letter["timestamp"],
        "key": letter["key"],
        **{f"header {escaped_line(header['key'])}": header["value"] for header in letter["headers"]},
        "error": f"{error['type']}: {error['message']}",
    }
    width = min(_MOST_NAME, max(map(len, facts)))
    for fact, value in facts.items():
        print_line(f"{fact:<{width}}  {as_text(value)}")
    encoding = f" ({letter['encoding']})" if "encoding" in letter else ""
    print_text(f"\nvalue{encoding}\n{as_text(letter['value'])}")
    if error["traceback"]:
        print_text(f"\ntraceback\n{error['traceback'].rstrip()}")

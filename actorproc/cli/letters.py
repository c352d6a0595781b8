"""`actorproc dead-letters`: lists, shows, replays and purges."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from actorproc.admin.replay import Letter, Replay, Replays
from actorproc.cli.common import (
    chosen_partitions,
    console,
    counted,
    opened_processor,
    print_json,
    print_table,
    run_async,
    shown,
)
from actorproc.cli.loading import names_object
from actorproc.errors import UsageError
from actorproc.output.checkpoint import read_checkpoint
from actorproc.output.dead_letters import letter_files, read_letters
from actorproc.output.dead_letters import purge as purge_file
from actorproc.output.source_identity import recorded_source
from actorproc.partition.committer import CHECKPOINT_EVERY
from actorproc.retention.readers import read_registry
from actorproc.sources.log import LogSource
from actorproc.sources.protocol import parse_time
from actorproc.storage.document import whole_number
from actorproc.storage.names import READERS, ProcessorLayout, natural, partition_of
from actorproc.storage.store import Store
from actorproc.stores import OUTPUT_SCHEME, open_store

_SHOWN = 100  # characters of a value in a table
_TOLD = 300  # of an error's message, which may end with what to do
_NAMES = 30  # characters: what is longer stands out beyond the others
_OWN = "a source of your own, which is only read"


def show_all(
    name: str,
    container: str,
    partition: str | None,
    error: str | None,
    replayed: bool,
    not_replayed: bool,
    limit: int | None,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Print dead letters."""
    if replayed and not_replayed:
        raise UsageError("--replayed and --not-replayed: choose one")
    wanted = True if replayed else False if not_replayed else None

    async def work() -> None:
        async with opened_processor(name, container, config, given) as (store, layout, _):
            if partition is not None:
                await chosen_partitions(store, layout, partition)
            types: Counter[str] = Counter()
            which = {None: "", True: " was replayed", False: " is left to replay"}[wanted]
            replays = await Replays.listed(store, layout)
            letters = _chosen(store, layout, replays, partition, error, wanted, limit, types)
            if as_json:
                async for letter in letters:
                    print_json(letter)
            else:
                marks = ["replayed"] if replays and wanted is None else []
                columns = ["letter", "time", *marks, "error", "message", "key", "value"]
                rows = (_row(letter, marks) async for letter in letters)
                none = f"no dead letter{which}" if which else "no dead letters"
                await print_table(columns, rows, empty=none if error is None else "", cut=columns[-3:])
                if types.total() > 1 and error is None and limit is None:
                    console.print(f"{counted(types.total(), 'dead letter')}: {_kinds(types)}", markup=False)
                if limit is not None and (types.total() if error is None else types[error]) > limit:
                    console.print(f"there are more: these are the first {limit:,} (--limit)", markup=False)
            if error is not None and error not in types:
                _say_which(types, error, which)

    run_async(work)


def _say_which(types: Counter[str], error: str, which: str = "") -> None:
    there = _kinds(types) or "none at all"
    typer.echo(f"no dead letter with an error of type {error!r}{which}; there are: {there}", err=True)


def _kinds(types: Counter[str]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in types.most_common())


def _parsed(which: str) -> tuple[str, int]:
    partition, colon, digits = which.rpartition(":")
    sequence = whole_number(digits)
    if not colon or sequence is None:
        raise UsageError(f"{which!r:.100} is no dead letter; write PARTITION:SEQUENCE, such as 3:1042")
    return partition, sequence


def show_one(
    which: str, name: str, container: str, as_json: bool, config: Path | None, given: Sequence[str] | None
) -> None:
    """Print one dead letter whole."""
    partition, sequence = _parsed(which)

    async def work() -> None:
        async with opened_processor(name, container, config, given) as (store, layout, _):
            key, letters = await _find(store, layout, partition, sequence)
            letter = next(letter for letter in letters if letter["sequence"] == sequence)
            letter["replayed"] = sequence in await (await Replays.listed(store, layout)).done(key, letters)
            if as_json:
                print_json(letter)
            else:
                _print_whole(letter)

    run_async(work)


def replay(
    which: Sequence[str],
    name: str,
    container: str,
    source: str | None,
    partition: str | None,
    error: str | None,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Append dead letters to their log again: these, or all of a partition and a type of error. Exit code 1 if there are some and
    none is of that type."""
    if which and (partition is not None or error is not None):
        raise UsageError("--partition and --error choose among all letters, and do not go with letters by name")
    named = {_parsed(letter) for letter in which}
    if source is not None and (other := _no_log(source)) is not None:
        raise _only_to_a_log(f"--source {source}: ", other)

    async def work() -> bool:
        async with (
            opened_processor(name, container, config, given) as (store, layout, settings),
            open_store(place := source or await _log_of(store, layout), settings) as log,
            Replay.opened(store, name, log) as replaying,
        ):
            if partition is not None:
                await chosen_partitions(store, layout, partition)
            types: Counter[str] = Counter()

            def is_wanted(letter: Letter) -> bool:
                types[letter["error"]["type"]] += 1
                if named:
                    return (letter["partition"], letter["sequence"]) in named
                return error in (None, letter["error"]["type"])

            others = sorted((await read_registry(log, READERS)).readers.keys() - {name})
            found = [(await _find(store, layout, *letter))[0] for letter in sorted(named)]
            appended = before = 0
            for key in dict.fromkeys(found) if named else await replaying.files(partition):
                done = await replaying.file(key, is_wanted)
                if done is not None:
                    appended += done.appended
                    before += done.before
        if as_json:
            print_json({"replayed": appended, "replayed_before": before})
        else:
            note = f"; {before:,} replayed before" if before else ""
            console.print(f"{counted(appended, 'dead letter')} appended to {place}{note}", markup=False, soft_wrap=True)
            if appended and others:
                console.print(f"who reads that log as well gets them again: {', '.join(others)}", markup=False)
        if error is None or error in types:
            return True
        _say_which(types, error)
        return not types

    if not run_async(work):
        raise typer.Exit(1)


def _no_log(source: str) -> str | None:
    if source.startswith(OUTPUT_SCHEME):
        return "a processor's output, which it alone writes"
    return _OWN if names_object(source) else None


async def _log_of(store: Store, layout: ProcessorLayout) -> str:
    """URL of the log that is processed here.

    Raises:
        UsageError: it is none, or not known.
    """
    recorded = await recorded_source(store, layout)
    if recorded is None:
        raise UsageError(f"{store.url} does not say what {layout.processor} reads: give the log with --source")
    name, kind = recorded
    if kind != LogSource.__name__:
        what = f"{layout.processor} reads {name}: "
        raise _only_to_a_log(what, _no_log(name) or _OWN)
    return name


def _only_to_a_log(what: str, other: str) -> UsageError:
    return UsageError(
        f"{what}dead letters are appended to a log, and that is {other}. "
        "Mend the handler and start it under another name, or produce the letters into a log of their own"
    )


def purge(
    name: str,
    container: str,
    partition: str | None,
    before: str | None,
    replayed: bool,
    yes: bool,
    as_json: bool,
    config: Path | None,
    given: Sequence[str] | None,
) -> None:
    """Forget dead letters, after asking. Exit code 1 if some that may go are kept."""
    limit = None if before is None else parse_time("--before", before)

    async def work() -> tuple[int, int, int, int]:
        async with opened_processor(name, container, config, given) as (store, layout, _):
            if partition is not None:
                await chosen_partitions(store, layout, partition)
            files: dict[str, int] = {}
            held = beside = 0  # letters that may go, and those in whose file they stand that may not
            replays = await Replays.listed(store, layout) if replayed else None
            for key in await letter_files(store, layout, partition):
                letters = await read_letters(store, key)
                done = None if replays is None else await replays.done(key, letters)
                may_go = sum(
                    (done is None or letter["sequence"] in done)
                    and (limit is None or datetime.fromisoformat(letter["time"]) < limit)
                    for letter in letters
                )
                if 0 < may_go == len(letters):
                    files[key] = may_go
                elif may_go:
                    held += may_go
                    beside += len(letters) - may_go
            if files and not yes:
                _ask(name, sum(files.values()))
            purged = kept = 0
            for key, count in files.items():
                checkpoint = await read_checkpoint(store, layout, partition_of(key))
                if checkpoint is not None and await purge_file(store, key, below=checkpoint.number):
                    purged += count
                else:
                    kept += count
        return purged, kept, held, beside

    purged, kept, held, beside = run_async(work)
    try:
        if as_json:
            print_json({"purged": purged, "kept": kept, "held": held})
            return
        stay = f"; {_held(held, beside, replayed=replayed, before=before is not None)}" if held else ""
        console.print(f"{counted(purged, 'dead letter')} purged{stay}", soft_wrap=True)
        if kept:
            console.print(
                f"{kept:,} kept: no checkpoint has passed them yet. A host writes one every {CHECKPOINT_EVERY} commits, and "
                "when it stops: start the processor if none runs, stop it or let it go on, and try again"
            )
    finally:  # whether or not somebody reads it
        if kept:
            raise typer.Exit(1)


def _held(held: int, beside: int, *, replayed: bool, before: bool) -> str:
    """Why letters that may go stay all the same: a file goes as a whole."""
    which = " and ".join(["replayed"] * replayed + ["older"] * before)
    stay = "one stays: it shares" if held == 1 else "ones stay: they share"
    others = f"{beside:,} that {'was' if beside == 1 else 'were'} not" + (
        " both" if replayed and before else f" {which}"
    )
    return f"{held:,} {which} {stay} a commit with {others}"


async def _chosen(
    store: Store, layout: ProcessorLayout, replays: Replays, partition: str | None, error: str | None,
    replayed: bool | None, limit: int | None, types: Counter[str],
) -> AsyncIterator[dict[str, Any]]:  # fmt: skip
    """Letters of the wanted type of `error`, `replayed` or not; counts in `types` those that there are."""
    left = limit
    for key in sorted(await letter_files(store, layout, partition), key=lambda key: (natural(partition_of(key)), key)):
        letters = await read_letters(store, key)
        done = await replays.done(key, letters)
        for letter in letters:
            letter["replayed"] = letter["sequence"] in done
            if replayed not in (None, letter["replayed"]):
                continue
            types[letter["error"]["type"]] += 1
            if error not in (None, letter["error"]["type"]):
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield letter


async def _find(
    store: Store, layout: ProcessorLayout, partition: str, sequence: int
) -> tuple[str, list[dict[str, Any]]]:
    """Key of the file with this letter, and all letters in it; by bisection: sequences grow from file to file.

    Raises:
        UsageError: there is none.
    """
    keys = await letter_files(store, layout, partition)
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        letters = await read_letters(store, keys[middle])
        if any(letter["sequence"] == sequence for letter in letters):
            return keys[middle], letters
        if letters and letters[0]["sequence"] > sequence:
            high = middle
        else:
            low = middle + 1
    raise UsageError(f"no dead letter {partition}:{sequence} (`actorproc dead-letters list` shows those there are)")


def _row(letter: dict[str, Any], marks: Sequence[str]) -> list[object]:
    error = letter["error"]
    name = f"{letter['partition']}:{letter['sequence']}"
    cells = [_short(error["message"], _TOLD), _short(letter["key"]), _short(letter["value"])]
    time = datetime.fromisoformat(letter["time"]).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [name, time, *("yes" if letter[mark] else "" for mark in marks), error["type"], *cells]


def _short(cell: object, most: int = _SHOWN) -> object:
    return cell[: most - 3] + "..." if isinstance(cell, str) and len(cell) > most else cell


def _one_line(name: str) -> str:
    return name.replace("\r", "\\r").replace("\n", "\\n")


def _print_whole(letter: dict[str, Any]) -> None:
    error = letter["error"]
    facts = {
        "letter": f"{letter['partition']}:{letter['sequence']}",
        "failed at": f"{letter['time']} on {letter['host']}, epoch {letter['epoch']}, attempts {letter['attempts']}",
        **({"replayed": "yes"} if letter["replayed"] else {}),
        "record of": letter["timestamp"],
        "key": letter["key"],
        **{f"header {_one_line(header['key'])}": header["value"] for header in letter["headers"]},
        "error": f"{error['type']}: {error['message']}",
    }
    width = min(_NAMES, max(map(len, facts)))
    for fact, value in facts.items():
        console.print(f"{fact:<{width}}  {shown(value)}", markup=False, soft_wrap=True)
    encoding = f" ({letter['encoding']})" if "encoding" in letter else ""
    console.print(f"\nvalue{encoding}\n{shown(letter['value'])}", markup=False, soft_wrap=True)
    if error["traceback"]:
        console.print(f"\ntraceback\n{error['traceback'].rstrip()}", markup=False, soft_wrap=True)


def _ask(name: str, count: int) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            f"purge would forget {counted(count, 'dead letter')} of {name} and asks first; give --yes where nobody answers"
        )
    typer.confirm(f"Forget {counted(count, 'dead letter')} of {name} for good?", abort=True)

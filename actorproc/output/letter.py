"""Dead letters: records that could not be processed, kept with their cause, one JSON line each."""

from __future__ import annotations

import base64
import traceback
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
import orjson

from actorproc.errors import RESTORE, CorruptObject, located
from actorproc.handler.info import PartitionInfo
from actorproc.records import Record
from actorproc.runtime.clock import Clock
from actorproc.runtime.error_text import error_message, storable
from actorproc.storage.names import ProcessorLayout, number_of
from actorproc.storage.store import Store

HISTORY = "actorproc.dead_letter."
"""Prefix of the headers that a replay adds to a record: processor, partition, sequence, error, attempts, time."""


class _Header(msgspec.Struct):
    key: str
    value: str | None


class _Cause(msgspec.Struct):
    type: str
    message: str
    traceback: str | None


class _Letter(msgspec.Struct):
    """Fields of every dead letter.

    `key_encoding` and `encoding` are added if key or value are not UTF-8; `earlier`, a list of records, if others were
    given up together with this one, the last of them.
    """

    partition: str
    sequence: int
    key: str | None
    value: str | None
    headers: list[_Header]
    timestamp: str | None
    error: _Cause
    attempts: int
    host: str
    epoch: int
    time: Annotated[datetime, msgspec.Meta(tz=True)]


TRACEBACK_LIMIT = 16 * 2**10
"""Characters of a traceback that are stored: its end, with the user's code."""


def render_letter(
    record: Record,
    error: BaseException | str,
    attempts: int,
    site: PartitionInfo,
    clock: Clock,
    *,
    kind: str | None = None,
    earlier: Iterable[Record] = (),
) -> bytes:
    """The record and its cause as a JSON line, newline included.

    Args:
        error: that the handler raised, or the reason that it gave.
        kind: error type of the letter; default: the class of the error, "DeadLetter" for a reason.
        earlier: records that came before and are given up with this one.
    """
    cause: dict[str, Any]
    if isinstance(error, str):
        cause = {"type": storable(kind or "DeadLetter"), "message": storable(error), "traceback": None}
    else:
        trace = storable("".join(traceback.format_exception(error)))
        cause = {
            "type": storable(kind or type(error).__qualname__),
            "message": error_message(error),
            "traceback": trace[-TRACEBACK_LIMIT:],
        }
    before = [record_fields(other) for other in earlier]
    letter = {
        "partition": record.partition,
        **record_fields(record),
        **({"earlier": before} if before else {}),
        "error": cause,
        "attempts": attempts,
        "host": site.host,
        "epoch": site.epoch,
        "time": clock.now(),
    }
    return orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)


def record_fields(record: Record) -> dict[str, Any]:
    """A record as JSON fields; bytes that are no UTF-8 in base64, which `encoding` and `key_encoding` say."""
    value, encoding = _text(record.value)
    key, key_encoding = _text(record.key)
    return {
        "sequence": record.sequence,
        "key": key,
        **({"key_encoding": key_encoding} if key_encoding else {}),
        "value": value,
        **({"encoding": encoding} if encoding else {}),
        "headers": [_header(name, content) for name, content in record.headers],
        "timestamp": record.timestamp,
    }


def was_dead(record: Record) -> bool:
    """Whether the record comes from a replay."""
    return any(name.startswith(HISTORY) for name, _ in record.headers)


def decoded(text: str | None, encoding: str | None) -> bytes | None:
    """The bytes that a letter stores as `text`."""
    if text is None:
        return None
    return base64.b64decode(text) if encoding == "base64" else text.encode()


def _text(content: bytes | None) -> tuple[str | None, str | None]:
    """The content as text, with None; or in base64, with the word "base64"."""
    if content is None:
        return None, None
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"


def _header(name: str, content: bytes) -> dict[str, Any]:
    value, encoding = _text(content)
    return {"key": name, "value": value, **({"encoding": encoding} if encoding else {})}


async def letter_files(store: Store, layout: ProcessorLayout, partition: str | None = None) -> list[str]:
    """Keys of the published dead-letter files by partition and number, without purged ones."""
    prefix = layout.dead_letters if partition is None else layout.dead_letter_dir(partition)
    entries = (await store.list(prefix)).entries
    return [entry.key for entry in entries if entry.size and layout.is_dead_letter_file(entry.key)]


async def read_letters(store: Store, key: str) -> list[dict[str, Any]]:
    """The dead letters in one file.

    Raises:
        CorruptObject: it is corrupt.
    """
    with located(store.url):
        stored = await store.get(key)
        try:
            letters = [_checked(line) for line in stored.body.splitlines()] if stored else []
        except ValueError as error:
            raise corrupt_letters(key, error) from None
        return letters


def _checked(line: bytes) -> dict[str, Any]:
    """Parse a letter. Raises ValueError if it has other fields than `render_letter` writes."""
    msgspec.json.decode(line, type=_Letter)
    letter: dict[str, Any] = msgspec.json.decode(line)
    return letter


def corrupt_letters(key: str, error: Exception) -> CorruptObject:
    """The error for a corrupt file of dead letters."""
    return CorruptObject(
        key,
        f"is not a valid file of dead letters ({error}); {RESTORE}, or put an empty object in its place, as a "
        "purge does: its letters are forgotten then",
    )


async def dead_letters(
    store: Store, layout: ProcessorLayout, partition: str | None = None
) -> AsyncIterator[dict[str, Any]]:
    """All published dead letters, by partition and sequence."""
    for key in await letter_files(store, layout, partition):
        for letter in await read_letters(store, key):
            yield letter


async def purge(store: Store, key: str, *, below: int) -> bool:
    """Delete the dead letters of one file; False if its commit is not below the checkpoint's number, `below`.

    An empty object replaces the file, so that a worker that slept cannot publish the letters again.
    """
    if number_of(key) >= below:
        return False
    await store.put(key, b"")
    return True

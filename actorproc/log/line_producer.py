"""Lines into a log: reads JSON lines in blocks, takes the key out of each, and sends them as columns."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import filterfalse
from textwrap import shorten
from types import NoneType
from typing import Literal, NamedTuple, Protocol

import orjson

from actorproc.config.validation import did_you_mean
from actorproc.errors import UsageError
from actorproc.log.producer import Producer
from actorproc.log.resume_point import Account
from actorproc.log.serializers import VALUE_LIMIT
from actorproc.runtime.clock import SYSTEM, Clock

BLOCK = 2**20
"""Bytes read at once, at most: from a pipe it is what is there."""

_UNCONFIRMED = 64  # blocks under way before the oldest must be confirmed, so that a failure is seen soon
_SHOWN = 200  # characters of the names of fields in a message
_PACE = 0.1  # seconds; how finely a rate is kept


class BadLine(UsageError):
    """No key can be taken out of line `number`, counted from 1. The lines before it are all in the log."""

    def __init__(self, number: int, why: str, *, is_json: bool) -> None:
        super().__init__(f"line {number}: {why}; the lines before it are in the log")
        self.number, self.why, self.is_json = number, why, is_json


class LineReader(Protocol):
    """A binary file: `open(path, 'rb')`, `sys.stdin.buffer`, `gzip.open(path)`."""

    def read1(self, size: int, /) -> bytes: ...


OnBadLine = Literal["fail", "keep", "skip"]
"""What becomes of a line out of which no key can be taken, as it is no JSON object or has no such field: it ends the call, is sent
without a key, for the handler to judge, or is passed over."""


class Produced(NamedTuple):
    """What has been sent. `unkeyed`: of the records, those without a key although a field was named for it; `kept`: bad lines among
    those. `skipped`: bad lines that were passed over. `partitions`: records by partition."""

    records: int
    bytes: int
    unkeyed: int
    kept: int
    skipped: int
    partitions: Mapping[str, int]


async def produce_lines(
    producer: Producer,
    lines: LineReader,
    *,
    key: str | None = None,
    rate: float | None = None,
    on_bad_line: OnBadLine = "fail",
    tell: Callable[[BadLine], None] = lambda _: None,
    progress: Callable[[Produced], None] = lambda _: None,
    account: Account | None = None,
    clock: Clock = SYSTEM,
) -> Produced:
    """Send each line that is not blank as a record. On return all of them are in the log.

    A line is sent as it is, without its line break. Where no `key` is asked for it need not be JSON: what to do about
    that is the handler's to say.

    Args:
        lines: read from where it stands to its end; a pipe is followed as it comes.
        key: field whose value is the key: text as it is, null for none, anything else as JSON.
        rate: records per second, at most.
        on_bad_line: what becomes of a line out of which the key cannot be taken. If it ends this call, what was sent before stays
            sent.
        tell: called with each bad line that does not end it.
        progress: called after each block; with a rate, after each tenth of a second's worth.
        account: a new one; tells how far this came, however it ends.

    Raises:
        StoreError: some records could not be appended, or nobody knows.
        BadLine: no key can be taken out of a line, and that is to fail.
        UsageError: the rate is none, or a line is too long.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"rate = {rate!r}: more than 0 records per second, and finite")
    sent = Produced(0, 0, 0, 0, 0, {})
    counts: dict[str, int] = {}
    passed = 0  # lines
    began = clock.monotonic()
    account = account or Account()
    begun: list[bytes] = []  # pieces of a line whose end was not read yet
    begun_bytes = 0
    while True:
        block = await clock.run_in_thread(lines.read1, BLOCK, abandon=True)
        head, found, tail = block.rpartition(b"\n")
        if block and not found:
            begun.append(block)
            begun_bytes += len(block)
            if begun_bytes > VALUE_LIMIT:
                raise UsageError(
                    f"a line after record {sent.records} has more than {VALUE_LIMIT} bytes: is this a file of lines?"
                )
            continue
        text = b"".join([*begun, head])
        begun, begun_bytes = [tail], len(tail)
        values = _lines_of(text)
        numbers = _numbers_of(text, passed + 1, len(values))
        keys, bad = _keys_of(values, key) if key is not None else (None, set[int]())
        failed = min(bad) if bad and on_bad_line == "fail" else None
        bad_line = values[failed] if failed is not None else b""
        bad_number = numbers[failed] if failed is not None else 0
        if failed is None and key is not None:
            for index in sorted(bad):
                tell(_bad_line(numbers[index], values[index], key))
        if failed is not None:
            values, keys, numbers = values[:failed], keys and keys[:failed], numbers[:failed]
        elif bad and on_bad_line == "keep":
            sent = sent._replace(kept=sent.kept + len(bad))
        elif bad:
            good = [index for index in range(len(values)) if index not in bad]
            values, keys = [values[index] for index in good], keys and [keys[index] for index in good]
            numbers = [numbers[index] for index in good]
            sent = sent._replace(skipped=sent.skipped + len(bad))
        step = len(values) if rate is None else max(1, int(rate * _PACE))
        for start in range(0, len(values), step or 1):
            part = slice(start, start + step)
            part_keys = keys[part] if keys is not None else None
            deliveries = account.begin(numbers[part])
            await producer.send_many(values[part], keys=part_keys, into=deliveries)
            account.reach(numbers[part][-1] + 1)
            for partition, count in deliveries.counts().items():
                counts[partition] = counts.get(partition, 0) + count
            sent = sent._replace(
                records=sent.records + len(deliveries),
                bytes=sent.bytes + sum(map(len, values[part])),
                unkeyed=sent.unkeyed + (part_keys.count(None) if part_keys is not None else 0),
                partitions=counts,
            )
            await account.settle(_UNCONFIRMED)
            if rate is not None:
                await clock.sleep(max(0.0, began + sent.records / rate - clock.monotonic()))
            progress(sent)
        if failed is not None and key is not None:
            account.reach(bad_number)
            await producer.flush()
            raise _bad_line(bad_number, bad_line, key)
        if not block:
            break
        passed += text.count(b"\n") + 1
        account.reach(passed + 1)
    await producer.flush()
    return sent


class _Again:
    """The lines of which the blocks `read` were read already: gives those first."""

    def __init__(self, read: list[bytes], lines: LineReader) -> None:
        self._read = deque(read)
        self._lines = lines

    def read1(self, size: int, /) -> bytes:
        return self._read.popleft() if self._read else self._lines.read1(size)


async def first_checked(lines: LineReader, key: str, *, clock: Clock = SYSTEM) -> LineReader:
    """All of these lines, once the first that is not blank is there and has a key: before that a log need not be made.

    Raises:
        BadLine: no key can be taken out of it.
    """
    read: list[bytes] = []
    size = 0
    while size <= VALUE_LIMIT:  # a line that is longer is refused as it is sent
        block = await clock.run_in_thread(lines.read1, BLOCK, abandon=True)
        read.append(block)
        size += len(block)
        if block and b"\n" not in block:
            continue
        text = b"".join(read)
        if block:
            text = text[: text.rfind(b"\n")]
        if first := _lines_of(text)[:1]:
            _, bad = _keys_of(first, key)
            if bad:
                raise _bad_line(_numbers_of(text, 1)[0], first[0], key)
            break
        if not block:
            break
    return _Again(read, lines)


def _lines_of(block: bytes) -> list[bytes]:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")  # the last line has lost its b"\n"
    lines: list[bytes] = block.split(b"\n")
    return [line for line in filterfalse(bytes.isspace, lines) if line]


def _keys_of(lines: list[bytes], field: str) -> tuple[list[str | bytes | None], set[int]]:
    """The key of each line, and of which lines none can be taken (index in `lines`)."""
    parse = orjson.loads
    bad: set[int] = set()
    try:
        keys = [parse(line)[field] for line in lines]
    except (ValueError, LookupError, TypeError):
        keys = [None] * len(lines)
        for index, line in enumerate(lines):
            try:
                keys[index] = parse(line)[field]
            except (ValueError, LookupError, TypeError):
                bad.add(index)
    if not set(map(type, keys)) <= {str, NoneType}:
        keys = [
            key if key is None or type(key) is str else _as_json(key, line, field)
            for key, line in zip(keys, lines, strict=True)
        ]
    return keys, bad


_LARGE = 2.0**63


def _as_json(key: object, line: bytes, field: str) -> bytes:
    """A key that is no text. (Of an integer beyond 64 bits orjson makes a float, and one key of two.)"""
    if type(key) is float and abs(key) >= _LARGE:
        with suppress(ValueError, RecursionError):  # of more digits, or deeper, than Python takes it
            if type(exact := json.loads(line)[field]) is int:
                return str(exact).encode()
    return orjson.dumps(key)


def _bad_line(number: int, line: bytes, field: str) -> BadLine:
    shown = line[:80].decode(errors="replace") + ("..." if len(line) > 80 else "")
    try:
        fields = orjson.loads(line)
    except ValueError as error:
        return BadLine(number, f"no JSON ({error}): {shown}", is_json=False)
    if not isinstance(fields, dict):
        return BadLine(number, f"no JSON object with a field {field!r}: {shown}", is_json=True)
    hint = did_you_mean(field, fields) or ";"
    there = shorten(", ".join(fields), _SHOWN, placeholder=" ...") or "none"
    return BadLine(number, f"no field {field!r} in {shown}{hint} there are: {there}", is_json=True)


def _numbers_of(text: bytes, first: int, count: int = -1) -> Sequence[int]:
    """The numbers of the lines with something in them. `first`: of the first line. `count`: how many there are, if known."""
    if count == text.count(b"\n") + 1:
        return range(first, first + count)  # none is blank, as usual
    return [number for number, line in enumerate(text.split(b"\n"), first) if line and not line.isspace()]

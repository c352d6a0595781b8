"""Input formats: blocks of records with their keys and times, from JSON lines, text lines and CSV."""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from textwrap import shorten
from types import NoneType
from typing import Any, NamedTuple, Protocol, Self

import orjson

from actorproc.config.validation import did_you_mean
from actorproc.errors import UsageError
from actorproc.produce.serializers import EARLIEST, LATEST, VALUE_LIMIT, microseconds

BLOCK = 2**20
"""Maximum bytes of one read. A pipe returns what it has."""

_BOM = b"\xef\xbb\xbf"  # with which some programs begin a text
_SHOWN = 200  # characters of field names in a message
_EXACT = 2.0**63  # orjson reads larger integers as floats
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_UNITS = ((10**11, 1_000_000), (10**14, 1_000), (10**17, 1))
"""Numbers below are of this many microseconds: seconds until the year 5138, then milliseconds and so on."""


class LineReader(Protocol):
    """A binary file: `open(path, 'rb')`, `sys.stdin.buffer`, `gzip.open(path)`."""

    def read1(self, size: int, /) -> bytes: ...


class BadLine(UsageError):
    """A line without a usable key or time, or that does not fit its format. `number`: of the line, from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}; the lines before it are in the log")
        self.number, self.why = number, why


class InputBlock(NamedTuple):
    """Records in the order of the input. A bad line is a record without a key, with the line as its value."""

    values: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None
    """None: the records have no keys."""
    times: Sequence[int] | None
    """Microseconds since 1970; of a bad line those of the record before it. None: the time of sending."""
    numbers: Sequence[int]
    """Numbers of the lines in which the records begin, from 1."""
    bad: Mapping[int, BadLine]
    """By index of the record."""
    next_line: int
    """Number of the line after these records."""
    size: int
    """Bytes of input."""

    def select(self, indices: Collection[int]) -> Self:
        """The block with only the records at these indices."""
        return self._replace(
            values=[self.values[index] for index in indices],
            keys=None if self.keys is None else [self.keys[index] for index in indices],
            times=None if self.times is None else [self.times[index] for index in indices],
            numbers=[self.numbers[index] for index in indices],
            bad={new: self.bad[index] for new, index in enumerate(indices) if index in self.bad},
        )


class InputFormat(ABC):
    """Reads an input from its current position to its end.

    Args:
        key: name of the field that is the key. Default: records have no keys.
        time: name of the field with the time of the record, as in `input_time`. Default: the time of sending.
    """

    def __init__(self, reader: LineReader, key: str | None = None, time: str | None = None) -> None:
        self._lines = Lines(reader)
        self._key, self._time = key, time
        self._latest: int | None = None

    @abstractmethod
    def read(self) -> InputBlock | None:
        """Wait for the next block; None at the end. Blocking, so run it in a thread.

        Raises:
            UsageError: the input does not have this format.
        """

    def _filled(self, times: Sequence[int | None]) -> list[int]:
        """The times, those of bad lines included.

        A line without a time gets that of the line before it, and the first ones that of the first one with a time.
        Now, for example, would be far from its neighbours' times: it would move stream time, and fire their timers.
        """
        latest = self._latest
        if latest is None:
            latest = next((time for time in times if time is not None), 0)
        found = [latest := latest if time is None else time for time in times]
        self._latest = latest
        return found


class Lines:
    """Reads whole lines of an input."""

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._pieces: list[bytes] = []  # of a line whose end was not read yet
        self._ended = False
        self.passed = 0
        """Lines that were returned."""

    def read(self) -> bytes | None:
        """One or more lines, without the last line break; None at the end."""
        while not self._ended:
            block = self._reader.read1(BLOCK)
            head, found, tail = block.rpartition(b"\n")
            if block and not found:
                self._pieces.append(block)
                if sum(map(len, self._pieces)) > VALUE_LIMIT:
                    raise UsageError(
                        f"line {self.passed + 1} has more than {VALUE_LIMIT} bytes: is this a file of lines?"
                    )
                continue
            text = b"".join([*self._pieces, head])
            if not self.passed:
                text = text.removeprefix(_BOM)
            self._pieces = [tail]
            self._ended = not block
            if text or not self._ended:
                self.passed += text.count(b"\n") + 1
                return text
        return None


class TextLines(InputFormat):
    """A record for each line that is not blank: the line as it is, without its line break."""

    def read(self) -> InputBlock | None:
        if (text := self._lines.read()) is None:
            return None
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")  # the last line has lost its b"\n"
        lines = text.split(b"\n")
        numbers: Sequence[int] = range(self._lines.passed - len(lines) + 1, self._lines.passed + 1)
        if not all(map(bytes.strip, lines)):
            numbers = [number for number, line in zip(numbers, lines, strict=True) if line.strip()]
            lines = list(filter(bytes.strip, lines))
        keys, times, bad = self._fields(lines)
        errors = {index: BadLine(numbers[index], why) for index, why in bad.items()}
        return InputBlock(lines, keys, times, numbers, errors, self._lines.passed + 1, len(text) + 1)

    def _fields(self, lines: list[bytes]) -> tuple[list[str | bytes | None] | None, list[int] | None, dict[int, str]]:
        """Keys and times as in `InputBlock`, and why lines are bad, by index."""
        return None, None, {}


class JsonLines(TextLines):
    """JSON lines. Without a `key` and a `time`, lines are not parsed.

    A key is text as it is, null for no key, any other value as JSON.
    """

    def _fields(self, lines: list[bytes]) -> tuple[list[str | bytes | None] | None, list[int] | None, dict[int, str]]:
        key, time, parse = self._key, self._time, orjson.loads
        if key is None and time is None:
            return None, None, {}
        if time is None:
            with suppress(ValueError, LookupError, TypeError):
                picked = [parse(line)[key] for line in lines]
                if set(map(type, picked)) <= {str, NoneType}:  # as nearly always: 30 percent faster than below
                    return picked, None, {}
        keys: list[Any] = []
        times: list[int | None] = []
        bad: dict[int, str] = {}
        for index, line in enumerate(lines):
            found_key = found_time = None
            try:
                fields = parse(line)
                if key is not None:
                    found_key = fields[key]
                if time is not None and (found_time := input_time(fields[time])) is None:
                    bad[index], found_key = _wrong_time(time, fields[time]), None
            except (ValueError, LookupError, TypeError) as error:
                bad[index], found_key = self._why(line, error), None
            if key is not None and found_key is not None and type(found_key) is not str:
                found_key = _as_json(found_key, line, key)
            keys.append(found_key)
            times.append(found_time)
        return None if key is None else keys, None if time is None else self._filled(times), bad

    def _why(self, line: bytes, error: Exception) -> str:
        names = [name for name in (self._key, self._time) if name is not None]
        if isinstance(error, ValueError):
            return f"not JSON ({error}): {_shown(line)}"
        fields = orjson.loads(line)
        if not isinstance(fields, dict):
            return f"not a JSON object with a field {names[0]!r}: {_shown(line)}"
        name = next(name for name in names if name not in fields)
        return f"no field {name!r} in {_shown(line)}{_alternatives(name, fields)}"


class CsvRows(InputFormat):
    """CSV with a header. A row becomes a JSON object by column name; all values are text. An empty key is none.

    Fields may be quoted, and then contain commas and line breaks (RFC 4180).
    """

    def __init__(self, reader: LineReader, key: str | None = None, time: str | None = None) -> None:
        super().__init__(reader, key, time)
        csv.field_size_limit(VALUE_LIMIT)
        self._unparsed: deque[bytes] = deque()  # lines
        self._row: list[bytes] = []  # lines of the current row
        self._passed = 0  # lines that were parsed
        self._rows = csv.reader(self._next_lines(), strict=True)
        self._header: list[str] = []

    def read(self) -> InputBlock | None:
        if not self._header and not self._read_header():
            return None
        values: list[bytes] = []
        keys: list[str | bytes | None] = []
        times: list[int | None] = []
        numbers: list[int] = []
        bad: dict[int, BadLine] = {}
        size = 0
        while True:
            self._row.clear()
            number = self._passed + 1
            value, key, time, why = self._next_row()
            size += sum(map(len, self._row)) + len(self._row)
            if value and value.strip():  # not blank
                if why:
                    bad[len(values)] = BadLine(number, why)
                values.append(value)
                keys.append(key)
                times.append(time)
                numbers.append(number)
            if value is None or not self._unparsed or size >= BLOCK:
                break
        if not size:
            return None
        return InputBlock(
            values,
            None if self._key is None else keys,
            None if self._time is None else self._filled(times),
            numbers,
            bad,
            self._passed + 1,
            size,
        )

    def _next_row(self) -> tuple[bytes | None, str | None, int | None, str]:
        """Value, key and time of the next row, and why it is bad. The value is None at the end, blank of a blank row.

        The value of a row that does not fit is all of its lines.
        """
        try:
            row = next(self._rows, None)
            if not row:
                return (None if row is None else b""), None, None, ""
            fields = self._fields(row)
            value = orjson.dumps(fields)
        except (csv.Error, ValueError, TypeError) as error:
            if isinstance(error, csv.Error):
                self._give_back()
            line = b"\n".join(self._row).removesuffix(b"\r")
            why = "not UTF-8" if isinstance(error, TypeError) else error
            return line, None, None, f"not a row of this CSV ({why}): {_shown(line)}"
        time = None
        if self._time is not None and (time := input_time(fields[self._time])) is None:
            return value, None, None, _wrong_time(self._time, fields[self._time])
        return value, (fields[self._key] or None if self._key is not None else None), time, ""

    def _fields(self, row: list[str]) -> dict[str, str]:
        if len(row) != len(self._header):
            raise ValueError(f"{len(row)} fields, and the header has {len(self._header)}")
        return dict(zip(self._header, row, strict=True))

    def _give_back(self) -> None:
        """Let only the first line be bad where the quotes are wrong: one that is not closed takes good lines in."""
        self._unparsed.extendleft(reversed(self._row[1:]))
        self._passed -= len(self._row[1:])
        del self._row[1:]
        self._rows = csv.reader(self._next_lines(), strict=True)

    def _next_lines(self) -> Iterator[str]:
        while True:
            while self._unparsed:
                line = self._unparsed.popleft()
                self._row.append(line)
                self._passed += 1
                yield line.decode(errors="surrogateescape") + "\n"
            if (text := self._lines.read()) is None:
                return
            self._unparsed.extend(text.split(b"\n"))

    def _read_header(self) -> bool:
        """Read the first row that is not blank. False if there is none."""
        try:
            self._header = next(filter(None, self._rows), [])
        except csv.Error as error:
            raise UsageError(f"the header is not CSV: {error}") from None
        for name in self._header:
            written = name.encode(errors="surrogateescape")
            if "\0" in name or written != name.encode(errors="replace"):  # each row would be as bad
                raise UsageError(
                    f"the CSV header is not UTF-8, at {written!r}: convert the input, for example with iconv"
                )
        if len(set(self._header)) < len(self._header):
            raise UsageError(f"the CSV header names a column twice: {', '.join(self._header)}")
        for column in (self._key, self._time) if self._header else ():
            if column is not None and column not in self._header:
                raise UsageError(f"the CSV header has no column {column!r}{_alternatives(column, self._header)}")
        return bool(self._header)


def input_time(value: object) -> int | None:
    """Microseconds since 1970, or None if the value is no time.

    Args:
        value: ISO 8601 text, in UTC if it names no zone; or a number, also as text, of seconds, milliseconds,
            microseconds or nanoseconds since 1970. Its size decides the unit.
    """
    with suppress(ValueError, OverflowError, UsageError):  # also of a time beyond the years 1 to 9999 in UTC
        if type(value) is str:
            if not (number := _NUMBER.fullmatch(value)):
                time = datetime.fromisoformat(value)
                return microseconds(time if time.tzinfo else time.replace(tzinfo=UTC))
            value = float(value) if number[1] else int(value)
        if type(value) is int or type(value) is float:
            factor = next((factor for limit, factor in _UNITS if abs(value) < limit), 0)
            found = round(value * factor if factor else value / 1_000)
            return found if EARLIEST <= found <= LATEST else None
    return None


def _wrong_time(name: str, value: object) -> str:
    return f"field {name!r} is no time: {str(value)[:80]!r}. A time is ISO 8601, or a number since 1970"


def _as_json(key: object, line: bytes, field: str) -> bytes:
    """A key that is not text. orjson reads integers beyond 64 bits as floats, which would make one key of several."""
    if type(key) is float and abs(key) >= _EXACT:
        with suppress(ValueError, RecursionError):  # Python limits digits and depth; orjson does not
            if type(exact := json.loads(line)[field]) is int:
                return str(exact).encode()
    return orjson.dumps(key)


def _shown(line: bytes) -> str:
    return line[:80].decode(errors="replace") + ("..." if len(line) > 80 else "")


def _alternatives(name: str, names: Collection[str]) -> str:
    guess = did_you_mean(name, names) or ";"
    return f"{guess} there are: {shorten(', '.join(names), _SHOWN, placeholder=' ...') or 'none'}"

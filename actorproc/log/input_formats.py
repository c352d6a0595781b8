"""Input formats: JSON lines, plain text lines and CSV. Each reads blocks of records with their keys."""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from textwrap import shorten
from types import NoneType
from typing import NamedTuple, Protocol, Self

import orjson

from actorproc.config.validation import did_you_mean
from actorproc.errors import UsageError
from actorproc.log.serializers import VALUE_LIMIT

BLOCK = 2**20
"""Maximum bytes of one read. A pipe returns what it has."""

_SHOWN = 200  # characters of field names in a message
_EXACT = 2.0**63  # orjson reads larger integers as floats


class LineReader(Protocol):
    """A binary file: `open(path, 'rb')`, `sys.stdin.buffer`, `gzip.open(path)`."""

    def read1(self, size: int, /) -> bytes: ...


class BadLine(UsageError):
    """A line without a usable key, or that does not fit its format. `number`: of the line, from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}; the lines before it are in the log")
        self.number, self.why = number, why


class InputBlock(NamedTuple):
    """Records in the order of the input. A bad line is a record without a key, with the line as its value."""

    values: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None
    """None: the records have no keys."""
    numbers: Sequence[int]
    """Numbers of the lines in which the records begin, from 1."""
    bad: Mapping[int, BadLine]
    """By index of the record."""
    next_line: int
    """Number of the line after the block."""
    size: int
    """Bytes of input."""

    def select(self, indices: Collection[int]) -> Self:
        """The block with only the records at these indices."""
        return self._replace(
            values=[self.values[index] for index in indices],
            keys=None if self.keys is None else [self.keys[index] for index in indices],
            numbers=[self.numbers[index] for index in indices],
        )


class InputFormat(ABC):
    """Reads an input from its current position to its end."""

    header_lines = 0
    """Number of lines at the beginning that the rest of the input cannot be read without."""

    def __init__(self, reader: LineReader) -> None:
        self._lines = _Lines(reader)

    @abstractmethod
    def fetch(self) -> Callable[[], InputBlock] | None:
        """Wait for input. Returns a function that parses it into the next block; None at the end.

        Run this method in a thread, and the function on the event loop, where parsing is faster by 6 percent.

        Raises:
            UsageError: the input does not have this format.
        """


class _Lines:
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
            self._pieces = [tail]
            self._ended = not block
            if text or not self._ended:
                self.passed += text.count(b"\n") + 1
                return text
        return None


class _LineFormat(InputFormat):
    """A record for each line that is not blank: the line as it is, without its line break."""

    def fetch(self) -> Callable[[], InputBlock] | None:
        text = self._lines.read()
        return None if text is None else partial(self._parse, text)

    def _parse(self, text: bytes) -> InputBlock:
        lines = _without_blanks(text)
        numbers = _numbers(text, self._lines.passed - text.count(b"\n"), len(lines))
        keys, bad = self._keys(lines)
        errors = {index: self._error(numbers[index], lines[index]) for index in sorted(bad)}
        return InputBlock(lines, keys, numbers, errors, self._lines.passed + 1, len(text) + 1)

    @abstractmethod
    def _keys(self, lines: list[bytes]) -> tuple[list[str | bytes | None] | None, set[int]]:
        """The keys of lines, and the indices of bad lines."""

    @abstractmethod
    def _error(self, number: int, line: bytes) -> BadLine: ...


class JsonLines(_LineFormat):
    """JSON lines. Without a `key`, lines are not parsed.

    Args:
        key: field whose value is the key: text as it is, null for no key, any other value as JSON.
    """

    def __init__(self, reader: LineReader, key: str | None = None) -> None:
        super().__init__(reader)
        self._key = key

    def _keys(self, lines: list[bytes]) -> tuple[list[str | bytes | None] | None, set[int]]:
        if self._key is None:
            return None, set()
        field, parse = self._key, orjson.loads
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

    def _error(self, number: int, line: bytes) -> BadLine:
        try:
            fields = orjson.loads(line)
        except ValueError as error:
            return BadLine(number, f"not JSON ({error}): {_shown(line)}")
        if not isinstance(fields, dict):
            return BadLine(number, f"not a JSON object with a field {self._key!r}: {_shown(line)}")
        return BadLine(number, f"no field {self._key!r} in {_shown(line)}{_alternatives(str(self._key), fields)}")


class TextLines(_LineFormat):
    """Lines of any text.

    Args:
        key_regex: its first group is the key. Without it, records have no keys.

    Raises:
        UsageError: the regular expression is invalid, or has no group.
    """

    def __init__(self, reader: LineReader, key_regex: str | None = None) -> None:
        super().__init__(reader)
        try:
            self._regex = None if key_regex is None else re.compile(key_regex.encode())
        except re.error as error:
            raise UsageError(f"--key-regex {key_regex!r}: {error}") from None
        if self._regex is not None and not self._regex.groups:
            raise UsageError(f"--key-regex {key_regex!r} has no group: put the key in parentheses, as in '^(\\S+)'")

    def _keys(self, lines: list[bytes]) -> tuple[list[str | bytes | None] | None, set[int]]:
        if self._regex is None:
            return None, set()
        matches = list(map(self._regex.search, lines))
        keys: list[str | bytes | None] = [match[1] if match else None for match in matches]
        return keys, {index for index, match in enumerate(matches) if match is None}

    def _error(self, number: int, line: bytes) -> BadLine:
        return BadLine(number, f"--key-regex does not match: {_shown(line)}")


class CsvRows(InputFormat):
    """CSV with a header. A row becomes a JSON object by column name; all values are text.

    Fields may be quoted, and then contain commas and line breaks (RFC 4180).

    Args:
        key_column: its value is the key; an empty one means no key.
    """

    def __init__(self, reader: LineReader, key_column: str | None = None) -> None:
        super().__init__(reader)
        csv.field_size_limit(VALUE_LIMIT)
        self._key_column = key_column
        self._unparsed: deque[bytes] = deque()  # lines
        self._row: list[bytes] = []  # lines of the current row
        self._passed = 0  # lines that were parsed
        self._rows = csv.reader(self._next_lines(), strict=True)
        self._header: list[str] = []
        self._key_index = 0

    def fetch(self) -> Callable[[], InputBlock] | None:
        if not self._header and not self._read_header():
            return None
        values: list[bytes] = []
        keys: list[str | bytes | None] | None = None if self._key_column is None else []
        numbers: list[int] = []
        bad: dict[int, BadLine] = {}
        size = 0
        while True:
            self._row.clear()
            number = self._passed + 1
            try:
                row = next(self._rows, None)
                value, key = self._record(row) if row else (b"", None)
            except (csv.Error, ValueError) as error:
                self._give_back()
                value, key = b"".join(self._row).removesuffix(b"\r"), None
                row = [""] if value.strip() else []
                if row:
                    bad[len(values)] = BadLine(number, f"not a row of this CSV ({error}): {_shown(value)}")
            size += sum(map(len, self._row)) + len(self._row)
            if row:  # not blank
                values.append(value)
                numbers.append(number)
                if keys is not None:
                    keys.append(key)
            if row is None or not self._unparsed or size >= BLOCK:
                break
        block = InputBlock(values, keys, numbers, bad, self._passed + 1, size)
        return (lambda: block) if size else None

    def _give_back(self) -> None:
        """Let only the first line of a bad row be bad. A quote that is not closed takes good lines in."""
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
        if not self._header:
            return False
        self._header[0] = self._header[0].removeprefix("\ufeff")
        self.header_lines = self._passed
        if len(set(self._header)) < len(self._header):
            raise UsageError(f"the CSV header names a column twice: {', '.join(self._header)}")
        if self._key_column is not None:
            if self._key_column not in self._header:
                names = _alternatives(self._key_column, self._header)
                raise UsageError(f"the CSV header has no column {self._key_column!r}{names}")
            self._key_index = self._header.index(self._key_column)
        return True

    def _record(self, row: list[str]) -> tuple[bytes, str | None]:
        """Value and key of a row. Raises ValueError."""
        if len(row) != len(self._header):
            raise ValueError(f"{len(row)} fields, and the header has {len(self._header)}")
        try:
            value = orjson.dumps(dict(zip(self._header, row, strict=True)))
        except TypeError:
            raise ValueError("not UTF-8") from None
        return value, row[self._key_index] or None


def _without_blanks(text: bytes) -> list[bytes]:
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")  # the last line has lost its b"\n"
    lines: list[bytes] = text.split(b"\n")
    return list(filter(bytes.strip, lines))


def _numbers(text: bytes, first: int, count: int) -> Sequence[int]:
    """The numbers of the `count` lines that are not blank. `first`: of the first line of the text."""
    if count == text.count(b"\n") + 1:
        return range(first, first + count)  # no line is blank
    return [number for number, line in enumerate(text.split(b"\n"), first) if line and not line.isspace()]


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

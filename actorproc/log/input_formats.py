"""Input formats: blocks of records with their keys and timestamps, from JSON lines and plain text lines."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from textwrap import shorten
from types import NoneType
from typing import Any, NamedTuple, Protocol, Self

import orjson

from actorproc.config.validation import did_you_mean
from actorproc.errors import UsageError
from actorproc.log.input_times import Times, input_time, wrong_time
from actorproc.log.serializers import VALUE_LIMIT

BLOCK = 2**20
"""Maximum bytes of one read. A pipe returns what it has."""

_BOM = b"\xef\xbb\xbf"  # with which some programs begin a text
_SHOWN = 200  # characters of field names in a message
_EXACT = 2.0**63  # orjson reads larger integers as floats


class LineReader(Protocol):
    """A binary file: `open(path, 'rb')`, `sys.stdin.buffer`, `gzip.open(path)`."""

    def read1(self, size: int, /) -> bytes: ...


class BadLine(UsageError):
    """A line without a usable key or timestamp, or that does not fit its format. `number`: of the line, from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}; the lines before it are in the log")
        self.number, self.why = number, why


class InputBlock(NamedTuple):
    """Records in the order of the input. A bad line is a record without a key, with the line as its value."""

    values: Sequence[bytes]
    keys: Sequence[str | bytes | None] | None
    """None: the records have no keys."""
    timestamps: Sequence[int] | None
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
            timestamps=None if self.timestamps is None else [self.timestamps[index] for index in indices],
            numbers=[self.numbers[index] for index in indices],
        )

    def before(self, index: int) -> Self:
        """The block with only the records before this one."""
        return self.select(range(index))._replace(next_line=self.numbers[index])


class InputFormat(ABC):
    """Reads an input from its current position to its end."""

    header_lines = 0
    """Number of lines at the beginning that the rest of the input cannot be read without."""

    def __init__(self, reader: LineReader) -> None:
        self._lines = Lines(reader)

    @abstractmethod
    def fetch(self) -> Callable[[], InputBlock] | None:
        """Wait for input. Returns a function that parses it into the next block; None at the end.

        Run this method in a thread, and the function on the event loop, where parsing is faster by 6 percent.

        Raises:
            UsageError: the input does not have this format.
        """


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


class _Fields(NamedTuple):
    """Of the lines of a block: keys and timestamps, as in `InputBlock`, and the indices of bad lines."""

    keys: list[str | bytes | None] | None = None
    timestamps: list[int] | None = None
    bad: Collection[int] = ()


class _LineFormat(InputFormat):
    """A record for each line that is not blank: the line as it is, without its line break."""

    def fetch(self) -> Callable[[], InputBlock] | None:
        text = self._lines.read()
        return None if text is None else partial(self._parse, text)

    def _parse(self, text: bytes) -> InputBlock:
        lines = _without_blanks(text)
        numbers = _numbers(text, self._lines.passed - text.count(b"\n"), len(lines))
        keys, timestamps, bad = self._fields(lines)
        errors = {index: self._error(numbers[index], lines[index]) for index in sorted(bad)}
        return InputBlock(lines, keys, timestamps, numbers, errors, self._lines.passed + 1, len(text) + 1)

    @abstractmethod
    def _fields(self, lines: list[bytes]) -> _Fields: ...

    @abstractmethod
    def _error(self, number: int, line: bytes) -> BadLine: ...


class JsonLines(_LineFormat):
    """JSON lines. Without a `key` and a `timestamp_field`, lines are not parsed.

    Args:
        key: field whose value is the key: text as it is, null for no key, any other value as JSON.
        timestamp_field: field with the time of the record, as in `input_time`. Default: the time of sending.
    """

    def __init__(self, reader: LineReader, key: str | None = None, timestamp_field: str | None = None) -> None:
        super().__init__(reader)
        self._key, self._timestamp_field = key, timestamp_field
        self._names = [name for name in (key, timestamp_field) if name is not None]
        self._times = Times()

    def _fields(self, lines: list[bytes]) -> _Fields:
        if not self._names:
            return _Fields()
        found, bad = _pick(lines, self._names)
        keys = None if self._key is None else _json_keys(found[0], lines, self._key)
        if self._timestamp_field is None:
            return _Fields(keys, None, bad)
        times = list(map(input_time, found[-1]))
        bad = {index for index, time in enumerate(times) if time is None}
        if keys is not None and bad:
            keys = [None if index in bad else key for index, key in enumerate(keys)]
        return _Fields(keys, self._times.fill(times), bad)

    def _error(self, number: int, line: bytes) -> BadLine:
        try:
            fields = orjson.loads(line)
        except ValueError as error:
            return BadLine(number, f"not JSON ({error}): {shown(line)}")
        if not isinstance(fields, dict):
            return BadLine(number, f"not a JSON object with a field {self._names[0]!r}: {shown(line)}")
        for name in self._names:
            if name not in fields:
                return BadLine(number, f"no field {name!r} in {shown(line)}{alternatives(name, fields)}")
        return BadLine(number, wrong_time(f"field {self._timestamp_field!r}", fields[self._timestamp_field]))


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

    def _fields(self, lines: list[bytes]) -> _Fields:
        if self._regex is None:
            return _Fields()
        matches = list(map(self._regex.search, lines))
        keys: list[str | bytes | None] = [match[1] if match else None for match in matches]
        return _Fields(keys, None, {index for index, match in enumerate(matches) if match is None})

    def _error(self, number: int, line: bytes) -> BadLine:
        return BadLine(number, f"--key-regex does not match: {shown(line)}")


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


def _pick(lines: list[bytes], names: Sequence[str]) -> tuple[list[Sequence[Any]], set[int]]:
    """The values of each of one or two fields, and the indices of lines that lack one; their values are None."""
    pick, parse = itemgetter(*names), orjson.loads
    nothing = pick(dict.fromkeys(names))
    bad: set[int] = set()
    try:
        found = [pick(parse(line)) for line in lines]
    except (ValueError, LookupError, TypeError):
        found = [nothing] * len(lines)
        for index, line in enumerate(lines):
            try:
                found[index] = pick(parse(line))
            except (ValueError, LookupError, TypeError):
                bad.add(index)
    return [found] if len(names) == 1 else [[values[place] for values in found] for place in range(len(names))], bad


def _json_keys(keys: Sequence[Any], lines: list[bytes], field: str) -> list[str | bytes | None]:
    if set(map(type, keys)) <= {str, NoneType}:
        return list(keys)
    return [
        key if key is None or type(key) is str else _as_json(key, line, field)
        for key, line in zip(keys, lines, strict=True)
    ]


def _as_json(key: object, line: bytes, field: str) -> bytes:
    """A key that is not text. orjson reads integers beyond 64 bits as floats, which would make one key of several."""
    if type(key) is float and abs(key) >= _EXACT:
        with suppress(ValueError, RecursionError):  # Python limits digits and depth; orjson does not
            if type(exact := json.loads(line)[field]) is int:
                return str(exact).encode()
    return orjson.dumps(key)


def shown(line: bytes) -> str:
    return line[:80].decode(errors="replace") + ("..." if len(line) > 80 else "")


def alternatives(name: str, names: Collection[str]) -> str:
    guess = did_you_mean(name, names) or ";"
    return f"{guess} there are: {shorten(', '.join(names), _SHOWN, placeholder=' ...') or 'none'}"

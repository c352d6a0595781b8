"""CSV with a header as an input format: each row becomes a JSON object."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import orjson

from actorproc.errors import UsageError
from actorproc.log.input_formats import BLOCK, BadLine, InputBlock, InputFormat, LineReader, alternatives, shown
from actorproc.log.input_times import Times, input_time, wrong_time
from actorproc.log.serializers import VALUE_LIMIT


class _Row(NamedTuple):
    number: int
    """Of the line in which the row begins."""
    value: bytes
    key: str | None = None
    time: int | None = None
    """Microseconds since 1970."""
    why: str | None = None
    """The row is bad for this reason."""


class CsvRows(InputFormat):
    """CSV with a header. A row becomes a JSON object by column name; all values are text.

    Fields may be quoted, and then contain commas and line breaks (RFC 4180).

    Args:
        key_column: its value is the key; an empty one means no key.
        timestamp_column: its value is the time of the record, as in `input_time`. Default: the time of sending.
    """

    def __init__(self, reader: LineReader, key_column: str | None = None, timestamp_column: str | None = None) -> None:
        super().__init__(reader)
        csv.field_size_limit(VALUE_LIMIT)
        self._key_column, self._timestamp_column = key_column, timestamp_column
        self._times = Times()
        self._unparsed: deque[bytes] = deque()  # lines
        self._row: list[bytes] = []  # lines of the current row
        self._passed = 0  # lines that were parsed
        self._rows = csv.reader(self._next_lines(), strict=True)
        self._header: list[str] = []
        self._key_index: int | None = None
        self._time_index: int | None = None

    def fetch(self) -> Callable[[], InputBlock] | None:
        if not self._header and not self._read_header():
            return None
        rows: list[_Row] = []
        size = 0
        while True:
            self._row.clear()
            row = self._read_row()
            size += sum(map(len, self._row)) + len(self._row)
            if row is not None and row.value.strip():  # not blank
                rows.append(row)
            if row is None or not self._unparsed or size >= BLOCK:
                break
        block = self._block(rows, size)
        return (lambda: block) if size else None

    def _block(self, rows: list[_Row], size: int) -> InputBlock:
        return InputBlock(
            [row.value for row in rows],
            None if self._key_column is None else [row.key for row in rows],
            None if self._timestamp_column is None else self._times.fill([row.time for row in rows]),
            [row.number for row in rows],
            {index: BadLine(row.number, row.why) for index, row in enumerate(rows) if row.why},
            self._passed + 1,
            size,
        )

    def _read_row(self) -> _Row | None:
        """The next row; one that does not fit is all of its lines. A blank row has a blank value. None at the end."""
        number = self._passed + 1
        try:
            row = next(self._rows, None)
            return None if row is None else self._record(number, row) if row else _Row(number, b"")
        except (csv.Error, ValueError) as error:
            if isinstance(error, csv.Error):
                self._give_back()
            line = b"\n".join(self._row).removesuffix(b"\r")
            return _Row(number, line, why=f"not a row of this CSV ({error}): {shown(line)}")

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
        if not self._header:
            return False
        self.header_lines = self._passed
        for name in self._header:
            if "\0" in name or not _is_utf8(name):  # each row would be as bad
                written = name.encode(errors="surrogateescape")
                raise UsageError(
                    f"the CSV header is not UTF-8, at {written!r}: convert the input, for example with iconv"
                )
        if len(set(self._header)) < len(self._header):
            raise UsageError(f"the CSV header names a column twice: {', '.join(self._header)}")
        self._key_index, self._time_index = self._place(self._key_column), self._place(self._timestamp_column)
        return True

    def _place(self, column: str | None) -> int | None:
        """The index of a column, if it is asked for."""
        if column is None:
            return None
        if column not in self._header:
            raise UsageError(f"the CSV header has no column {column!r}{alternatives(column, self._header)}")
        return self._header.index(column)

    def _record(self, number: int, row: list[str]) -> _Row:
        """Raises ValueError if the row does not fit."""
        if len(row) != len(self._header):
            raise ValueError(f"{len(row)} fields, and the header has {len(self._header)}")
        try:
            value = orjson.dumps(dict(zip(self._header, row, strict=True)))
        except TypeError:
            raise ValueError("not UTF-8") from None
        key = None if self._key_index is None else row[self._key_index] or None
        if self._time_index is None:
            return _Row(number, value, key)
        time = input_time(row[self._time_index])
        if time is None:
            return _Row(number, value, why=wrong_time(f"column {self._timestamp_column!r}", row[self._time_index]))
        return _Row(number, value, key, time)


def _is_utf8(text: str) -> bool:
    """Whether the text has no byte that was escaped because it is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

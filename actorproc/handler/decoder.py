"""The contract of decoders: how a handler gets the values of records as Python objects or as columns.

`values_of` and `columns_of` guard a decoder: each failure is one record's ValueError, whatever a library raises.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import pyarrow as pa

from actorproc.errors import DecodeError, HandlerMisuse, UsageError
from actorproc.rows.output_schema import output_schema, parse_schema
from actorproc.runtime.error_text import format_error

T = TypeVar("T")

LISTS_PER_CALL = 4
"""Lists whose values are decoded together: fewer make more calls, and more no longer fit the CPU cache."""

PASSED_ON = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, UsageError, HandlerMisuse)
"""Exceptions of a decoder that are no failure of a value: an end from outside, or wrong use that fails for each value.

Anything else is a failure, a BaseException, too: libraries in Rust raise a PanicException, which is no Exception.
"""

Parsed = tuple[pa.Table, dict[int, Exception]]
"""Rows, ordered by their column `_sequence`, and the reasons why other records have none, by sequence."""


class Values(ABC, Generic[T]):
    """Decodes values into Python objects. Used by several threads at once."""

    @abstractmethod
    def parse(self, value: bytes | None) -> T:
        """Decode one value.

        Raises:
            ValueError: it does not decode. Any other error means the same (see `values_of`).
        """

    def parse_all(self, values: pa.Array) -> list[T] | None:
        """All values of a binary column, in order; None if they must be decoded one by one."""
        return None

    def parse_pieces(self, values: pa.Array, size: int) -> Iterator[list[T] | None]:
        """`parse_all` in lists of `size` values."""
        for start in range(0, len(values), LISTS_PER_CALL * size):
            yield from self._parse_some(values.slice(start, LISTS_PER_CALL * size), size)

    def _parse_some(self, values: pa.Array, size: int) -> Iterator[list[T] | None]:
        """Override it if lists can be made one by one at the same cost: the caller drops each before it takes the next
        one, and many objects at once start Python's garbage collector again and again."""
        parsed = self.parse_all(values)
        for at in range(0, len(values), size):
            yield None if parsed is None else parsed[at : at + size]


class Columns(ABC):
    """Decodes values into the columns of a schema. Used by several threads at once.

    Attributes:
        is_columnar: no Python object is made for each value, so that thousands take milliseconds.
    """

    is_columnar = False

    @abstractmethod
    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        """Rows of the values that decode and fit the schema.

        Args:
            values: binary.
            sequences: int64, the sequence of each value's record.
        """


class Decoder(ABC):
    """Decodes the values of records. One instance serves all partitions of a host."""

    @abstractmethod
    def values(self, kind: Any = Any) -> Values[Any]:
        """Decodes into instances of `kind`: a `msgspec.Struct`, dataclass, pydantic model...; Any: plain objects.

        Raises:
            TypeError: instances of `kind` cannot be made.
        """

    @abstractmethod
    def columns(self, schema: pa.Schema) -> Columns:
        """Decodes into the columns of a schema. Fields that it does not name are ignored, missing ones are null.

        Raises:
            SchemaError: the format has nothing like a column's type.
        """

    async def prepare(self, values: pa.Array) -> None:
        """Fetch everything that decoding these values needs. Nothing else waits for a network.

        Raises:
            SourceError: it cannot be fetched now. The values are read again later.
        """

    async def output_schema(self, subject: str) -> pa.Schema:
        """The columns of a schema in the registry, for `output_schema = "registry:SUBJECT"`.

        Raises:
            UsageError: there is no registry, no such subject, or its schema has no columns.
            SourceError: the registry does not answer.
        """
        raise UsageError(f"output_schema = 'registry:{subject}' needs the setting schema_registry")

    async def subjects(self, limit: int) -> tuple[list[dict[str, object]], int] | None:
        """The first subjects of the registry that it asks, and how many there are, for `doctor`. None: it asks none.

        Raises:
            SourceError: the registry does not answer.
        """
        return None

    async def close(self) -> None:
        """Release connections."""


class _GuardedValues(Values[Any]):
    """Raises only ValueError. Values that cannot be decoded together are decoded one by one."""

    def __init__(self, values: Values[Any]) -> None:
        self._values = values

    def parse(self, value: bytes | None) -> Any:
        try:
            return self._values.parse(value)
        except (ValueError, *PASSED_ON):
            raise
        except BaseException as error:  # whatever a library or a user's type raises
            raise decode_error(error) from error

    def parse_all(self, values: pa.Array) -> list[Any] | None:
        return next(self.parse_pieces(values, max(1, len(values))), [])

    def parse_pieces(self, values: pa.Array, size: int) -> Iterator[list[Any] | None]:
        pieces = self._values.parse_pieces(values, size)
        for at in range(0, len(values), size):
            try:
                piece = next(pieces)
            except PASSED_ON:
                raise
            except BaseException:  # noqa: BLE001  # a value of this piece; the others are still decoded together
                pieces, piece = self._values.parse_pieces(values[at + size :], size), None
            yield piece


class _GuardedColumns(Columns):
    """Returns each failure as the ValueError of its record."""

    def __init__(self, columns: Columns, schema: pa.Schema) -> None:
        self._columns = columns
        self._none = output_schema(schema).empty_table()

    @property
    def is_columnar(self) -> bool:  # type: ignore[override]
        return self._columns.is_columnar

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        try:
            return self._columns.parse(values, sequences)
        except PASSED_ON:
            raise
        except BaseException as error:  # noqa: BLE001  # of any of the values
            if len(values) < 2:
                return self._none, dict.fromkeys(sequences.to_pylist(), decode_error(error))
        half = len(values) // 2
        first, errors = self.parse(values[:half], sequences[:half])
        second, others = self.parse(values[half:], sequences[half:])
        return pa.concat_tables([first, second]), errors | others


def decode_error(error: BaseException) -> DecodeError:
    """A failure of a library or of a user's type as the reason why a value does not decode."""
    return DecodeError(format_error(error))


@lru_cache(maxsize=64)  # the partitions of a host use the same few
def values_of(decoder: Decoder, kind: Any) -> Values[Any]:
    """`decoder.values(kind)`, made once and guarded: for a value that does not decode it raises ValueError alone."""
    return _GuardedValues(decoder.values(kind))


@lru_cache(maxsize=64)
def columns_of(decoder: Decoder, schema: pa.Schema | str) -> Columns:
    """`decoder.columns`, made once and guarded, of a schema or its DDL. It returns all failures of values as errors."""
    parsed = parse_schema(schema)
    return _GuardedColumns(decoder.columns(parsed), parsed)

"""`GroupedDecoder`: values with a header that says how the rest is to be decoded."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actorproc.errors import DecodeError, HandlerMisuse
from actorproc.handler.decoder import Columns, Decoder, Parsed, Values
from actorproc.rows.output_schema import output_schema
from actorproc.rows.sequence_order import joined

Indexes = npt.NDArray[np.int64]


class Part(NamedTuple):
    """The meaning of a header: its name in messages, and the decoder of the rest."""

    name: str
    decoder: Decoder


class Group(NamedTuple):
    """The values with one header.

    Attributes:
        payloads: binary, the values without their header.
        indexes: of these values among all.
    """

    part: Part
    payloads: pa.Array
    indexes: Indexes


class GroupedDecoder(Decoder):
    """Decodes each value with the decoder that its header names."""

    @abstractmethod
    def split_one(self, value: bytes) -> tuple[Part, bytes]:
        """The meaning of a value's header, and the rest of the value.

        Raises:
            DecodeError: the header is broken or unknown.
        """

    @abstractmethod
    def split(self, values: pa.Array) -> tuple[list[Group], dict[int, DecodeError]]:
        """The same for a binary column: its groups, and by index the reasons why other values are in none."""

    def values(self, kind: Any = Any) -> Values[Any]:
        return _GroupedValues(self, kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return _GroupedColumns(self, schema)


class _GroupedValues(Values[Any]):
    def __init__(self, decoder: GroupedDecoder, kind: Any) -> None:
        self._decoder = decoder
        self._kind = kind
        self._of: dict[Decoder, Values[Any]] = {}

    def parse(self, value: bytes | None) -> Any:
        if value is None:
            raise DecodeError("the record has no value")
        part, payload = self._decoder.split_one(value)
        try:
            return self._values(part).parse(payload)
        except ValueError as error:
            raise _named(part, error) from None

    def parse_all(self, values: pa.Array) -> list[Any] | None:
        groups, errors = self._decoder.split(values)
        if errors:
            return None
        parsed: list[Any] = [None] * len(values)
        for part, payloads, indexes in groups:
            objects = self._values(part).parse_all(payloads)
            if objects is None or len(groups) == 1:
                return objects
            for index, item in zip(indexes.tolist(), objects, strict=True):
                parsed[index] = item
        return parsed

    def _values(self, part: Part) -> Values[Any]:
        if part.decoder not in self._of:
            try:
                self._of[part.decoder] = part.decoder.values(self._kind)
            except TypeError as error:  # for each value of this schema
                raise HandlerMisuse(f"values of {part.name} cannot become {self._kind!r}: {error}") from None
        return self._of[part.decoder]


class _GroupedColumns(Columns):
    def __init__(self, decoder: GroupedDecoder, schema: pa.Schema) -> None:
        self._decoder = decoder
        self._schema = schema
        self._of: dict[Decoder, Columns] = {}

    @property
    def is_columnar(self) -> bool:  # type: ignore[override]  # known once there were values
        return bool(self._of) and all(columns.is_columnar for columns in self._of.values())

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        groups, unknown = self._decoder.split(values)
        errors: dict[int, Exception] = {sequences[index].as_py(): error for index, error in unknown.items()}
        tables = [output_schema(self._schema).empty_table()] if not groups else []
        for part, payloads, indexes in groups:
            table, misfits = self._columns(part).parse(payloads, sequences.take(pa.array(indexes)))
            tables.append(table)
            errors.update({sequence: _named(part, error) for sequence, error in misfits.items()})
        return joined(tables), errors

    def _columns(self, part: Part) -> Columns:
        if part.decoder not in self._of:
            self._of[part.decoder] = part.decoder.columns(self._schema)
        return self._of[part.decoder]


def _named(part: Part, error: Exception) -> DecodeError:
    return DecodeError(f"{part.name}: {error}")

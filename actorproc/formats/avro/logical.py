"""Logical types of Avro: dates, times and decimals from the numbers and bytes that are written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_PREC, Context, Decimal
from typing import Any

from actorproc.errors import DecodeError
from actorproc.formats.avro.schema import AvroType

_EXACT = Context(prec=MAX_PREC)
_DECIMAL_BYTES = 128  # more than any column takes; Python needs long for millions of digits
_EPOCH, _LOCAL_EPOCH, _FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1), date(1970, 1, 1)  # noqa: DTZ001

Convert = Callable[[Any], Any]


def conversion(writer: AvroType, reader: AvroType) -> Convert | None:
    """Converts a written value to the reader's logical type. None: the reader has none.

    The unit of a time and the scale of a decimal are those of the writer, so that the value stays the same.

    Raises:
        ValueError: the one logical type cannot be read as the other.
    """
    if reader.logical is None:
        return None
    if writer.logical is None or writer.logical == reader.logical:
        of = writer if writer.logical == "decimal" else reader
        return converter(of if reader.logical == "decimal" else reader)
    unit = _unit(writer.logical)
    if unit is None or _unit(reader.logical) is None:
        raise ValueError(f"{writer.logical} cannot be read as {reader.logical}")
    return _moment(unit, reader.logical)


def converter(kind: AvroType) -> Convert | None:
    """Converts a written value to its logical type. None: the type has none."""
    if kind.logical is None:
        return None
    if kind.logical == "date":
        return lambda days: _FIRST_DAY + timedelta(days)
    if kind.logical == "decimal":
        return _decimal(kind.scale)
    return _moment(_unit(kind.logical) or 1, kind.logical)


def _unit(logical: str) -> int | None:
    """The microseconds in one."""
    return 1000 if logical.endswith("timestamp-millis") else 1 if logical.endswith("timestamp-micros") else None


def _moment(unit: int, logical: str) -> Convert:
    epoch = _LOCAL_EPOCH if logical.startswith("local-") else _EPOCH
    return lambda count: epoch + timedelta(microseconds=count * unit)


def _decimal(scale: int) -> Convert:
    def convert(content: bytes) -> Decimal:
        if len(content) > _DECIMAL_BYTES:
            raise DecodeError(f"a decimal has {len(content)} bytes, more than {_DECIMAL_BYTES}")
        return Decimal(int.from_bytes(content, "big", signed=True)).scaleb(-scale, _EXACT)

    return convert

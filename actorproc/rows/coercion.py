"""Coerces Python values to Arrow types without loss or guesses.

`converts_natively` tests at the speed of C whether Arrow converts all values of a column correctly by itself. Otherwise
`value_coercer` converts value by value. Arrow alone would turn 1.5 into 1, a datetime into its date and an int into a
date, and would drop fields that a struct does not have.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timezone, tzinfo
from decimal import Decimal, InvalidOperation, localcontext
from difflib import get_close_matches
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from actorproc.rows.casting import short_repr
from actorproc.rows.ddl import type_ddl
from actorproc.rows.fields import fields_of

Plain = Callable[[Sequence[Any]], bool]
Coerce = Callable[[Any], Any]

_NONE = type(None)
_NATIVE_TYPES: dict[pa.DataType, tuple[type, ...]] = {
    pa.bool_(): (bool,),
    pa.int8(): (int,),
    pa.int16(): (int,),
    pa.int32(): (int,),
    pa.int64(): (int,),
    pa.float64(): (float, int),
    pa.binary(): (bytes,),
    pa.date32(): (date,),
}


def unknown_name(name: object, known: Sequence[str], what: str) -> str:
    """Message about an unknown column or field, with the known one that may be meant."""
    near = get_close_matches(name, known, 1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(known) or "none, as output_schema is not declared"
    return f"there is no {what} {short_repr(name)}; {hint}there are: {listed}"


# Whole columns


def converts_natively(kind: pa.DataType) -> Plain:
    """A test whether `pyarrow.array(values, kind)` converts, or refuses, all values of a list correctly."""
    if pt.is_string(kind):
        return _are_strings
    native, fit = _native(kind)
    types = frozenset({*native, _NONE})
    if fit is None:
        return lambda values: types.issuperset(map(type, values))
    return lambda values: types.issuperset(map(type, values)) and fit(values)


def _are_strings(values: Sequence[object]) -> bool:
    try:
        "".join(values)  # type: ignore[arg-type]  # only text: takes a quarter of the time of testing each type
    except TypeError:
        return frozenset({str, _NONE}).issuperset(map(type, values))
    return True


def _native(kind: pa.DataType) -> tuple[tuple[type, ...], Plain | None]:
    """The types of the values, beside None, and a test of values of these types; None: no further test."""
    if pt.is_timestamp(kind):
        return (datetime,), _have_zones if kind.tz else _have_no_zones
    if pt.is_float32(kind):
        return (float, int), _fit_float
    if pt.is_decimal(kind):
        return (Decimal, int), _fit_decimal(kind)
    if pt.is_struct(kind):
        return (dict,), _fit_struct(kind)
    if pt.is_map(kind):
        return (dict,), _fit_map(kind)
    if pt.is_list(kind):
        items = converts_natively(kind.value_type)
        return (list, tuple), lambda values: items(list(chain.from_iterable(filter(None, values))))
    return _NATIVE_TYPES[kind], None


def _zones(values: Sequence[Any]) -> set[tzinfo | None]:
    return set(map(operator.attrgetter("tzinfo"), filter(None, values)))


def _have_no_zones(values: Sequence[Any]) -> bool:
    return _zones(values) <= {None}


def _have_zones(values: Sequence[Any]) -> bool:
    """Whether Arrow converts times of these zones exactly. Of others it drops seconds, or takes them for UTC."""
    return all(
        isinstance(zone, ZoneInfo) or (isinstance(zone, timezone) and not zone.utcoffset(None).microseconds)
        for zone in _zones(values)
    )


def _fit_float(values: Sequence[Any]) -> bool:
    wide = pa.array(values, pa.float64())
    return bool(pc.equal(pc.sum(pc.is_inf(wide)), pc.sum(pc.is_inf(wide.cast(pa.float32())))).as_py() is not False)


def _fit_decimal(kind: pa.DataType) -> Plain:
    lowest, highest = -kind.scale - 1, kind.precision - kind.scale

    def test(values: Sequence[Any]) -> bool:
        # Arrow 26 looks up powers of ten in a table without checking its bounds: 1e-9999999 ends the process, and
        # 1e-104 becomes garbage. Within these limits, and with at most 38 digits, it stays inside of the table.
        leading = [value.adjusted() for value in values if type(value) is Decimal]
        if leading and not (lowest <= min(leading) and max(leading) <= highest):
            return False
        # Arrow also turns a number with more than 38 digits to drop into zero instead of refusing it.
        nonzero = pc.sum(pc.not_equal(pa.array(values, kind), pa.scalar(0, kind)), min_count=0).as_py()
        return bool(nonzero == sum(map(operator.truth, values)))

    return test


def _fit_struct(kind: pa.StructType) -> Plain:
    names = frozenset(field.name for field in kind)
    children = [(field.name, converts_natively(field.type)) for field in kind]

    def test(values: Sequence[Any]) -> bool:
        given = list(filter(None, values))
        return names.issuperset(chain.from_iterable(given)) and all(
            child([value.get(name) for value in given]) for name, child in children
        )

    return test


def _fit_map(kind: pa.MapType) -> Plain:
    keys, items = converts_natively(kind.key_type), converts_natively(kind.item_type)

    def test(values: Sequence[Any]) -> bool:
        given = list(filter(None, values))
        return keys(list(chain.from_iterable(given))) and items(list(chain.from_iterable(map(dict.values, given))))

    return test


# Single values


def value_coercer(kind: pa.DataType, *, required: bool = False) -> Coerce:
    """A function that makes a value Arrow converts without loss. It raises ValueError if there is none."""
    name = type_ddl(kind)
    convert = _conversion(kind, name)

    def coerce(value: Any) -> Any:
        if value is None:
            if required:
                raise ValueError("it is NOT NULL")
            return None
        return convert(value)

    return coerce


def _conversion(kind: pa.DataType, name: str) -> Coerce:
    if pt.is_integer(kind):
        return _integer(name, kind.bit_width)
    if pt.is_floating(kind):
        return _floating(name, single=pt.is_float32(kind))
    if pt.is_timestamp(kind):
        return _timestamp(aware=kind.tz is not None)
    if pt.is_decimal(kind):
        return _decimal(name, kind.precision, kind.scale)
    if pt.is_struct(kind):
        return _struct(kind)
    if pt.is_map(kind):
        return _map(kind)
    if pt.is_list(kind):
        return _list(kind)
    return {pa.bool_(): _boolean, pa.string(): _string, pa.binary(): _binary, pa.date32(): _date}[kind]


def _no(value: Any, kind: str, allowed: str) -> ValueError:
    return ValueError(f"{short_repr(value)} ({type(value).__name__}) does not fit {kind}; give {allowed}")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise _no(value, "boolean", "True or False")


def _is_int(value: object) -> bool:
    """NumPy counts durations as integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def _integer(name: str, bits: int) -> Coerce:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> int:
        if isinstance(value, Decimal):
            if value.is_finite() and value and value.adjusted() > bits:  # int() of it could take minutes
                raise ValueError(f"{short_repr(value)} is out of range for {name} ({low} to {high})")
            whole = value.is_finite() and value == value.to_integral_value()
        elif isinstance(value, float | np.floating):
            whole = math.isfinite(value) and value % 1 == 0
        else:
            whole = _is_int(value)
        if not whole:
            raise _no(value, name, "an int, or a float without a fraction")
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"{short_repr(value)} is out of range for {name} ({low} to {high})")
        return number

    return convert


def _floating(name: str, *, single: bool) -> Coerce:
    def convert(value: Any) -> float:
        exact = _is_int(value)
        if not exact and not isinstance(value, float | np.floating):
            raise _no(value, name, "a float or an int")
        if exact and abs(int(value)) > (2**24 if single else 2**53):
            raise ValueError(
                f"{short_repr(value)} is an int that {name} cannot hold exactly; use float() if it may be rounded"
            )
        number = float(value)
        with np.errstate(over="ignore"):
            if single and math.isfinite(number) and np.isinf(np.float32(number)):
                raise ValueError(f"{short_repr(value)} is out of range for {name}")
        return number

    return convert


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _no(value, "string", "a str" + (", as bytes.decode() makes one" if isinstance(value, bytes) else ""))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{short_repr(value)} is not valid text: {error.reason}") from None
    return str.__str__(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _no(value, "binary", "bytes" + (", as str.encode() makes them" if isinstance(value, str) else ""))


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _no(value, "date", "a date" + (", as datetime.date() makes one" if isinstance(value, datetime) else ""))


def _timestamp(*, aware: bool) -> Coerce:
    name = "timestamp" if aware else "timestamp_ntz"
    wanted = "a datetime with a zone (tzinfo)" if aware else "a datetime without a zone"

    def convert(value: Any) -> datetime:
        if not isinstance(value, datetime) or value != value:  # pandas' NaT is a datetime
            raise _no(value, name, wanted)
        if getattr(value, "nanosecond", 0):
            raise ValueError(f"{short_repr(value)} has nanoseconds; {name} holds microseconds")
        if (value.utcoffset() is not None) != aware:
            instead = "; or declare the column timestamp_ntz" if aware else "; or declare the column timestamp"
            raise _no(value, name, wanted + instead)
        plain_value = datetime.combine(value.date(), value.timetz())
        try:
            return plain_value.astimezone(UTC) if aware else plain_value
        except OverflowError:
            raise ValueError(f"{short_repr(value)} is out of range for {name}") from None

    return convert


def _decimal(name: str, precision: int, scale: int) -> Coerce:
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if not isinstance(value, Decimal) and not _is_int(value):
            raise _no(
                value,
                name,
                "a Decimal or an int" + (" (Decimal(str(x)) keeps what is shown)" if isinstance(value, float) else ""),
            )
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        if not number.is_finite():
            raise ValueError(f"{number} is not finite")
        try:
            with localcontext(prec=precision):
                fitted = number.quantize(unit)
        except InvalidOperation:
            raise ValueError(f"{short_repr(value)} is out of range for {name}") from None
        if fitted != number:
            raise ValueError(f"{short_repr(value)} has more than {scale} digits after the point, too many for {name}")
        return fitted

    return convert


def _struct(kind: pa.StructType) -> Coerce:
    fields = {field.name: value_coercer(field.type, required=not field.nullable) for field in kind}

    def convert(value: Any) -> dict[str, Any]:
        given = value if isinstance(value, Mapping) else fields_of(value)
        if given is None:
            raise _no(value, "struct", "a dict, a msgspec.Struct, a dataclass or a pydantic model")
        for name in given:
            if name not in fields:
                raise ValueError(unknown_name(name, list(fields), "field"))
        return {name: _at(f".{name}", coerce, given.get(name)) for name, coerce in fields.items()}

    return convert


def _map(kind: pa.MapType) -> Coerce:
    keys, items = value_coercer(kind.key_type, required=True), value_coercer(kind.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise _no(value, "map", "a dict")
        return [
            (_at(f" key {short_repr(key)}", keys, key), _at(f"[{short_repr(key)}]", items, item))
            for key, item in value.items()
        ]

    return convert


def _list(kind: pa.ListType) -> Coerce:
    items = value_coercer(kind.value_type)

    def convert(value: Any) -> list[Any]:
        values: Iterable[Any] = value
        if isinstance(value, np.ndarray) and value.ndim:
            values = value.tolist()
            if value.dtype.kind in "mM":  # of nanoseconds it makes numbers
                values = [item if isinstance(made, int) else made for item, made in zip(value, values, strict=True)]
        elif not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
            raise _no(value, "array", "a list")
        return [_at(f"[{index}]", items, item) for index, item in enumerate(values)]

    return convert


class _Within(ValueError):
    """A part of a value does not fit. `path` leads to the part."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}".lstrip())
        self.path, self.why = path, why


def _at(path: str, coerce: Coerce, value: Any) -> Any:
    try:
        return coerce(value)
    except _Within as error:
        raise _Within(path + error.path, error.why) from None
    except ValueError as error:
        raise _Within(path, str(error)) from None

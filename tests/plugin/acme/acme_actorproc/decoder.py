"""Values in logfmt, such as `level=info took=12.5 path="/a b"`. Text is converted to the type of its column."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pyarrow as pa

from actorproc.errors import SettingsError
from actorproc.spi import Clock, Columns, Decoder, Parsed, Settings, Values


def open_logfmt(settings: Settings, *, clock: Clock) -> Decoder:
    if settings.decode_schema is not None:
        raise SettingsError("decode = logfmt takes no decode_schema")
    return LogfmtDecoder()


def _fields(value: bytes | None) -> dict[str, str]:
    if value is None:
        raise ValueError("the record has no value")
    pairs = [word.partition("=") for word in shlex.split(value.decode())]
    if wrong := [word for word, equals, _ in pairs if not equals or not word]:
        raise ValueError(f"{wrong[0]!r} is not KEY=VALUE")
    return {key: text for key, _, text in pairs}


class LogfmtDecoder(Decoder):
    def values(self, kind: Any = Any) -> Values[Any]:
        return _Values(kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return _Columns(schema)


class _Values(Values[Any]):
    def __init__(self, kind: Any) -> None:
        self._kind = kind
        msgspec.inspect.type_info(kind)  # raises TypeError where no instance can be made

    def parse(self, value: bytes | None) -> Any:
        return msgspec.convert(_fields(value), self._kind, strict=False)


class _Columns(Columns):
    """If one value of several is wrong, this raises, and actorproc asks again for fewer until that one is alone."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        rows = [_fields(value) for value in values.to_pylist()]
        columns = []
        for field in self._schema:
            column = pa.array([row.get(field.name) for row in rows], pa.string()).cast(field.type)
            if column.null_count and not field.nullable:
                raise ValueError(f"{field.name} is missing")
            columns.append(column)
        schema = self._schema.append(pa.field("_sequence", pa.int64(), nullable=False))
        return pa.table([*columns, sequences], schema=schema), {}

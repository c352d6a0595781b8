"""JSON values that a JSON Schema validates, with jsonschema-rs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema_rs
import orjson
import pyarrow as pa

from actorproc.codecs.json_limits import check_depth
from actorproc.codecs.json_parsing import JsonParser
from actorproc.codecs.typed_values import TypedValues
from actorproc.errors import DecodeError
from actorproc.formats.json_schema.reasons import Reasons
from actorproc.handler.decoder import Columns, Decoder, Parsed, Values

_MAIN = "the-schema-itself"
_BASE = "json-schema:///"
"""The base of names in `$ref`, unless the schema has an `$id`."""

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000, size_limit=2**20)
"""Patterns come from whoever registers a schema: one that takes too long on a value is that value's error."""


class JsonSchemaDecoder(Decoder):
    """Decodes JSON that is valid by a schema.

    Args:
        text: the schema.
        references: the schemas to which it refers, by the names in `$ref`.

    Raises:
        ValueError: it is not a JSON Schema, or refers to an unknown one.
    """

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        schema, others = orjson.loads(text), {name: orjson.loads(other) for name, other in (references or {}).items()}
        try:
            self._validator = _validator(schema, others)
        except jsonschema_rs.ReferencingError as error:
            raise ValueError(str(error)) from None
        self._reasons = Reasons(_validator, schema, others)

    def values(self, kind: Any = Any) -> Values[Any]:
        return _ValidValues(self, kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return _ValidColumns(self, schema)

    def check(self, value: bytes | None) -> None:
        """Raises DecodeError: the value is not JSON, or not valid."""
        if value is None:
            raise DecodeError("the record has no value")
        check_depth(value)
        try:
            parsed = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise DecodeError(f"the value is not JSON: {error}") from None
        if not self._validator.is_valid(parsed):
            raise DecodeError(f"not valid by the JSON Schema{self._reasons.of(parsed)}")


class _ValidValues(Values[Any]):
    def __init__(self, decoder: JsonSchemaDecoder, kind: Any) -> None:
        self._check = decoder.check
        self._typed = TypedValues(kind)

    def parse(self, value: bytes | None) -> Any:
        self._check(value)
        return self._typed.parse(value)

    def parse_all(self, values: pa.Array) -> list[Any] | None:
        try:
            for value in values.to_pylist():
                self._check(value)
        except DecodeError:
            return None
        return self._typed.parse_all(values)


class _ValidColumns(Columns):
    def __init__(self, decoder: JsonSchemaDecoder, schema: pa.Schema) -> None:
        self._check = decoder.check
        self._parser = JsonParser(schema)

    def parse(self, values: pa.Array, sequences: pa.Int64Array) -> Parsed:
        errors: dict[int, Exception] = {}
        valid = []
        for value, sequence in zip(values.to_pylist(), sequences.to_pylist(), strict=True):
            try:
                self._check(value)
                valid.append(True)
            except DecodeError as error:
                errors[sequence] = error
                valid.append(False)
        if errors:
            values, sequences = values.filter(pa.array(valid)), sequences.filter(pa.array(valid))
        table, misfits = self._parser.parse(values, sequences)
        return table, errors | misfits


def with_resolver(text: str, references: Mapping[str, str]) -> tuple[Any, Any]:
    """A schema, and a function that finds referred schemas one by one: all at once may be far too many.

    Raises:
        ValueError: it is not JSON, or refers to an unknown schema.
    """
    schema = orjson.loads(text)
    named = schema.get("$id") if isinstance(schema, dict) else None
    base = _uri(named if isinstance(named, str) else _MAIN)
    others = {name: orjson.loads(other) for name, other in references.items()}
    return schema, _registry({**others, base: schema}).resolver(base)


def _validator(schema: Any, references: Mapping[str, Any]) -> Any:
    return jsonschema_rs.validator_for(
        schema, registry=_registry(references), retriever=_not_found, pattern_options=_PATTERNS
    )


def _registry(references: Mapping[str, Any]) -> jsonschema_rs.Registry:
    """Schemas by their names in `$ref`."""
    named = [(_uri(name), schema) for name, schema in references.items()]
    return jsonschema_rs.Registry(named, retriever=_not_found)


def _uri(name: str) -> str:
    return name if ":" in name else _BASE + name.lstrip("/")


def _not_found(uri: str) -> NoReturn:
    """Schemas are not fetched from the network."""
    raise ValueError(f"{uri} is not among the references of the schema")

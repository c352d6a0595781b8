"""JSON Schemas of a registry: decoders of their values, and their columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pyarrow as pa

from actorproc.codecs.limits import MOST_COLUMNS
from actorproc.errors import SchemaError
from actorproc.formats.json_schema.decoder import JsonSchemaDecoder, with_resolver
from actorproc.formats.registry.client import RegistrySchema
from actorproc.formats.registry.decoder import RegistryFormat
from actorproc.handler.decoder import Decoder

_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_DEPTH = 100  # of schemas within schemas; each takes several calls of Python
_SHOWN = 80  # characters of a path in a message
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


class JsonSchemaFormat(RegistryFormat):
    """JSON with a JSON Schema."""

    kind = "JSON"

    def decoder(self, schema: RegistrySchema, reader: RegistrySchema | None) -> Decoder:
        return JsonSchemaDecoder(schema.text, schema.references)

    def columns(self, schema: RegistrySchema) -> pa.Schema:
        try:
            kind = _Columns().arrow_type(*with_resolver(schema.text, schema.references), "the value", 0)
        except SchemaError:
            raise
        except (jsonschema_rs.ReferencingError, ValueError) as error:
            raise SchemaError(f"schema id {schema.id}: {error}") from None
        except (TypeError, AttributeError):
            raise SchemaError(f"schema id {schema.id} is not a JSON Schema") from None
        if not pa.types.is_struct(kind):
            raise SchemaError(f"schema id {schema.id} does not declare an object with properties: it has no columns")
        return pa.schema(list(kind))


class _Columns:
    """Column types of schemas. `resolver`: finds the schemas to which one refers."""

    def __init__(self) -> None:
        self._parts = 0

    def arrow_type(self, schema: Any, resolver: Any, path: str, depth: int) -> pa.DataType:
        """The column type of values of a schema, with every part nullable."""
        kinds = list(self._kinds(schema, resolver, path, depth))
        if len(kinds) != 1:
            raise SchemaError(
                f"{path} has {len(kinds)} types in the JSON Schema, and a column has one: declare output_schema"
            )
        [(kind, of, resolver)] = kinds
        if kind == "object":
            return self._object_type(of, resolver, path, depth)
        if kind == "array":
            return pa.list_(pa.field("element", self.arrow_type(of.get("items", {}), resolver, f"{path}[]", depth + 1)))
        if kind == "string":
            return _FORMATS.get(str(of.get("format")), pa.string())
        if not isinstance(kind, str) or kind not in _TYPES:
            raise SchemaError(f"{path} has the type {kind!r}, which JSON Schema does not have")
        return _TYPES[kind]

    def _object_type(self, schema: dict[str, Any], resolver: Any, path: str, depth: int) -> pa.DataType:
        if properties := schema.get("properties"):
            named = sorted(properties.items())  # referenced schemas have lost the order
            return pa.struct([(name, self.arrow_type(of, resolver, f"{path}.{name}", depth + 1)) for name, of in named])
        more = schema.get("additionalProperties", {})
        return pa.map_(pa.string(), self.arrow_type(more, resolver, f"{path}.*", depth + 1))

    def _kinds(self, schema: Any, resolver: Any, path: str, depth: int) -> Iterator[tuple[Any, dict[str, Any], Any]]:
        """The types that the schema allows, except null, each with the schema that says so, and its resolver."""
        self._parts += 1
        if depth > _DEPTH or self._parts > MOST_COLUMNS:
            raise SchemaError(
                f"{path[:_SHOWN]} is beyond {_DEPTH} levels or {MOST_COLUMNS:,} parts, as in a schema that contains "
                "itself: declare output_schema"
            )
        if not isinstance(schema, dict):
            return
        if isinstance(reference := schema.get("$ref"), str):
            found = resolver.lookup(reference)
            yield from self._kinds(found.contents, found.resolver, path, depth + 1)
            return
        for word in ("oneOf", "anyOf"):
            if word in schema:
                for branch in schema[word]:
                    yield from self._kinds(branch, resolver, path, depth + 1)
                return
        kinds = schema.get("type", "object" if "properties" in schema else [])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind != "null":
                yield kind, schema, resolver

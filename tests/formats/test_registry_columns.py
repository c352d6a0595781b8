"""Schemas of a registry that no column types fit: one error that names the subject, the schema and the reason."""

from __future__ import annotations

import json
from typing import cast

import pyarrow as pa
import pytest

from actorproc.errors import SchemaError
from actorproc.formats.avro.registry_format import AvroFormat
from actorproc.formats.json_schema.registry_format import JsonSchemaFormat
from actorproc.formats.registry.client import RegistrySchema, SchemaRegistry
from actorproc.formats.registry.decoder import RegistryDecoder, RegistryFormat


def avro(kind: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]})


def decimal(**how: object) -> dict[str, object]:
    return {"type": "bytes", "logicalType": "decimal", **how}


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (AvroFormat(), avro(decimal(precision=64, scale=2))), (AvroFormat(), avro(None)), (AvroFormat(), avro({})),
        (AvroFormat(), '"long"'), (AvroFormat(), "null"), (AvroFormat(), "{"), (AvroFormat(), "[]"),
        (JsonSchemaFormat(), "{"), (JsonSchemaFormat(), "[]"), (JsonSchemaFormat(), "true"),
        (JsonSchemaFormat(), '{"type": "object", "properties": 7}'),
        (JsonSchemaFormat(), '{"type": "object", "properties": {"x": {"type": "object", "properties": [1]}}}'),
        (JsonSchemaFormat(), '{"type": "object", "properties": {"x": {"type": {}}}}'),
    ],
)  # fmt: skip
async def test_a_schema_that_no_column_types_fit_is_one_error(use: RegistryFormat, text: str) -> None:
    class OneSchema:
        url = "http://registry"

        async def version(self, name: str, number: int | None) -> RegistrySchema:
            return RegistrySchema(id=7, kind=use.kind, text=text, references={})

    decoder = RegistryDecoder(cast(SchemaRegistry, OneSchema()), use, None)
    with pytest.raises(SchemaError) as refused:
        await decoder.output_schema("orders-value")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"precision": 0},
        {"precision": -1},
        {"precision": "9"},
        {"precision": None},
        {"precision": 9, "scale": 10**10},
    ],
)  # fmt: skip
def test_a_decimal_that_is_declared_wrongly_is_its_bytes(how: dict[str, object]) -> None:
    """As Avro's specification asks: a logical type that is not valid is ignored."""
    schema = RegistrySchema(id=7, kind="AVRO", text=avro(decimal(**how)), references={})
    assert AvroFormat().columns(schema).field("x").type == pa.binary()

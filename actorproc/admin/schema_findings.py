"""Whether a handler fits the stored output and state, before it is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from actorproc.errors import SchemaError
from actorproc.output.schema_document import (
    StateTypes,
    StoredSchema,
    added_columns,
    check_state,
    parse_type,
    read_stored_schema,
)
from actorproc.rows.ddl import type_ddl
from actorproc.rows.output_schema import parse_schema
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class SchemaFinding(NamedTuple):
    """How one declared schema goes with the stored one."""

    subject: str
    """"output", or "state" and its name."""
    fits: bool
    text: str


async def check_schemas(
    store: Store, layout: ProcessorLayout, schema: pa.Schema, states: StateTypes
) -> list[SchemaFinding]:
    """Compare the schemas of a handler with the recorded ones. Changes nothing."""
    stored = await read_stored_schema(store, layout) or StoredSchema(ddl="")
    return [_output(stored, schema), *_states(stored, states)]


def _output(stored: StoredSchema, schema: pa.Schema) -> SchemaFinding:
    try:
        added = added_columns(parse_schema(stored.ddl), schema)
    except SchemaError as error:
        return SchemaFinding("output", False, str(error))
    if not len(schema):
        return SchemaFinding("output", True, "no columns")
    return SchemaFinding("output", True, f"new columns, for good: {', '.join(added)}" if added else "as it is stored")


def _states(stored: StoredSchema, states: StateTypes) -> Iterator[SchemaFinding]:
    for name in sorted(stored.states.keys() | states.keys()):
        subject = f"state {name}".strip()
        if name not in states:
            yield SchemaFinding(subject, True, "is no longer declared: values of any types are accepted")
        elif name not in stored.states:
            yield SchemaFinding(
                subject, True, f"newly declared: {type_ddl(states[name])}; stored values are not checked"
            )
        else:
            yield _state(subject, name, stored.states[name], states[name])


def _state(subject: str, name: str, ddl: str, declared: pa.DataType) -> SchemaFinding:
    try:
        check_state(name, parse_type(ddl), declared)
    except SchemaError as error:
        return SchemaFinding(subject, False, str(error))
    same = type_ddl(declared) == ddl
    return SchemaFinding(subject, True, "as it is stored" if same else f"changes to {type_ddl(declared)}")

"""The schemas of a processor: one object on which all hosts agree, of old and new versions of the handler."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from msgspec import field

from actorproc.errors import SchemaError
from actorproc.handler.state_schema import differences
from actorproc.rows.ddl import parse_ddl, schema_to_ddl, type_ddl
from actorproc.rows.output_schema import check_change, parse_schema
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class StoredSchema(Document, frozen=True):
    """The columns of the output as Spark DDL, without `_sequence`; and of keyed state."""

    ddl: str
    states: dict[str, str] = field(default_factory=dict)
    """The type of the values of each state that the handler declares, as Spark DDL, by its name."""


StateTypes = Mapping[str, pa.DataType]
"""By the name of the state."""


async def agree_on_schema(
    store: Store, layout: ProcessorLayout, schema: pa.Schema, states: StateTypes | None = None
) -> list[str]:
    """Record the schemas. They may differ from the recorded ones in added nullable columns, or fields with a default.

    Returns:
        The columns that were added to the recorded schema of the output.

    Raises:
        SchemaError: they do not fit. Names the column or field, both types and the ways out.
    """
    states = states or {}
    wanted = StoredSchema(ddl=schema_to_ddl(schema), states={name: type_ddl(kind) for name, kind in states.items()})
    added: list[str] = []

    def change(found: StoredSchema | None) -> StoredSchema | None:
        if found is None:
            return wanted
        added[:] = added_columns(parse_schema(found.ddl), schema)
        for name in found.states.keys() & states.keys():
            check_state(name, parse_type(found.states[name]), states[name])
        # Compared as text: comments, which `equals` ignores, are recorded, too.
        return None if (found.ddl, found.states) == (wanted.ddl, wanted.states) else wanted

    await SharedDocument(store, layout.schema, StoredSchema).change(change)
    return added


async def read_stored_schema(store: Store, layout: ProcessorLayout) -> StoredSchema | None:
    """The recorded schemas; None if the processor has not run yet."""
    return await SharedDocument(store, layout.schema, StoredSchema).read()


async def read_schema(store: Store, layout: ProcessorLayout) -> pa.Schema | None:
    """The recorded columns of the output, without `_sequence`; None if the processor has not run yet."""
    stored = await read_stored_schema(store, layout)
    return parse_schema(stored.ddl) if stored else None


async def read_state_type(store: Store, layout: ProcessorLayout, name: str) -> pa.DataType | None:
    """The recorded type of the values of a state; None: its values are of any types."""
    stored = await read_stored_schema(store, layout)
    ddl = stored.states.get(name) if stored else None
    return None if ddl is None else parse_type(ddl)


def parse_type(ddl: str) -> pa.DataType:
    """The type that `type_ddl` wrote."""
    return parse_ddl(f"value {ddl}")[0].type


def added_columns(old: pa.Schema, new: pa.Schema) -> list[str]:
    """The columns that `new` adds to the recorded ones.

    Raises:
        SchemaError: they do not fit.
    """
    check_change(old, new)
    return [name for name in new.names if name not in old.names]


def check_state(name: str, old: pa.DataType, new: pa.DataType) -> None:
    """Check that a handler may go on with values of type `new` where those of type `old` are stored.

    Raises:
        SchemaError: names each field, and the ways out.
    """
    if wrong := list(differences(old, new)):
        raise SchemaError(
            f"State{f' of {name!r}' if name else ''} does not go with the stored state: {'; '.join(wrong)}. Ways out: "
            "leave fields as they are and add others with a default; keep new values in a state of another name; or "
            "use a new processor name, which starts without state"
        )

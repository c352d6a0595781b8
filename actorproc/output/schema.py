"""The schema of a processor's output: one object on which all hosts agree, of old and new versions of the handler."""

from __future__ import annotations

import pyarrow as pa

from actorproc.rows.ddl import schema_to_ddl
from actorproc.rows.schema import check_change, parse_schema
from actorproc.storage.document import Document, SharedDocument
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


class StoredSchema(Document, frozen=True):
    """The schema as Spark DDL, without `_sequence`."""

    ddl: str


async def agree_on_schema(store: Store, layout: ProcessorLayout, schema: pa.Schema) -> list[str]:
    """Record `schema`. It may differ from the recorded one in added nullable columns.

    Returns:
        The columns that were added to the recorded schema.

    Raises:
        SchemaError: the schemas do not fit. Names the column, both types and the ways out.
    """
    wanted = StoredSchema(schema_to_ddl(schema))
    added: list[str] = []

    def change(found: StoredSchema | None) -> StoredSchema | None:
        if found is None:
            return wanted
        old = parse_schema(found.ddl)
        if schema_to_ddl(old) == wanted.ddl:  # with comments, which `equals` ignores
            return None
        check_change(old, schema)
        added[:] = [name for name in schema.names if name not in old.names]
        return wanted

    await SharedDocument(store, layout.schema, StoredSchema).change(change)
    return added


async def read_schema(store: Store, layout: ProcessorLayout) -> pa.Schema | None:
    """The recorded schema, without `_sequence`; None if the processor has not run yet."""
    stored = await SharedDocument(store, layout.schema, StoredSchema).read()
    return parse_schema(stored.ddl) if stored else None

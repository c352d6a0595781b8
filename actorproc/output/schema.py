"""The schema of a processor's output: one object that all its hosts, old and new, agree on."""

from __future__ import annotations

import pyarrow as pa

from actorproc.rows.schema import check_change, parse_schema, schema_to_ddl
from actorproc.storage.document import document, to_document
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store


async def agree_on_schema(store: Store, layout: ProcessorLayout, schema: pa.Schema) -> list[str]:
    """Record `schema`, or check that it may follow the one recorded (added nullable columns), and record it then.

    Returns:
        The columns that were added to what was recorded.

    Raises:
        SchemaError: it may not; names the column, its old and new type, and the ways out.
    """
    while True:
        stored = await store.get(layout.schema)
        if stored is not None:
            old = _parse(layout.schema, stored.body)
            if schema_to_ddl(old) == schema_to_ddl(schema):  # comments included, which `equals` passes over
                return []
            check_change(old, schema)
        body = to_document({"ddl": schema_to_ddl(schema), "put_id": store.clock.nonce()})
        try:
            await store.write(layout.schema, body, stored.tag if stored else None)
        except Conflict:
            continue
        return [] if stored is None else [name for name in schema.names if name not in old.names]


async def read_schema(store: Store, layout: ProcessorLayout) -> pa.Schema | None:
    """The recorded schema, without `_sequence`; None if the processor has not run yet."""
    stored = await store.get(layout.schema)
    return _parse(layout.schema, stored.body) if stored else None


def _parse(key: str, body: bytes) -> pa.Schema:
    with document(key, body, "schema") as fields:
        return parse_schema(fields["ddl"])

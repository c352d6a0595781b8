"""`JsonRows`: JSON objects become typed rows by a schema alone."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.codecs.json_parsing import JsonParser
from actorproc.records import Batch
from actorproc.rows.schema import parse_schema


class JsonOptions(BaseModel):
    """Options of JsonRows."""

    model_config = ConfigDict(extra="forbid")

    output_schema: str | None = Field(None, description="Columns as Spark DDL; default: those of the class.")


class JsonRows(PartitionHandler):
    """One row per record: the fields of its JSON object that the schema names.

    A value that does not fit is a dead letter.

    Give the schema in a subclass (`output_schema = "carrier string, dep_delay double"`) or as the option
    `output_schema`. See `JsonParser` for the types.
    """

    Options = JsonOptions

    _parser: JsonParser | None = None

    @classmethod
    def schema_for(cls, options: Any) -> pa.Schema:
        """The schema, checked.

        Raises:
            SchemaError: it does not parse, or has a type that JSON does not have.
            HandlerDefinitionError: there is no schema.
        """
        schema = parse_schema(getattr(options, "output_schema", None) or cls.output_schema)
        if not len(schema):
            raise HandlerDefinitionError(
                f"{cls.__name__} has no columns: set output_schema in a subclass, "
                "or give --option output_schema='carrier string, dep_delay double'"
            )
        JsonParser(schema)
        return schema

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Emit a row for each value that fits, and fail the records of the others."""
        if self._parser is None:
            self._parser = JsonParser(self.schema_for(ctx.options))
        table, errors = self._parser.parse(batch.data.column("value"), batch.sequence_array)
        for sequence, error in errors.items():
            ctx.fail(batch[bisect_left(batch.sequences, sequence)], error, again=False)
        ctx.emit_arrow(table)
        # Values that are parsed one by one take long, and what a subclass does may block.
        self._quick = self._parser.is_columnar and not errors and type(self).process is JsonRows.process

"""`DecodedRows`: decoded values become rows by a schema alone."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from actorproc.codecs import subject_of
from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.decoder import Decoder
from actorproc.records import Batch
from actorproc.rows.output_schema import parse_schema


class RowOptions(BaseModel):
    """Options of DecodedRows and JsonRows."""

    model_config = ConfigDict(extra="forbid")

    output_schema: str | None = Field(
        None, description="Columns as Spark DDL, or registry:SUBJECT; default: those of the class."
    )


class DecodedRows(PartitionHandler):
    """One row per record: the fields of its value that the schema names, decoded as the setting `decode` says.

    A value that does not decode or fit is a dead letter.

    Give the schema in a subclass (`output_schema = "carrier string, dep_delay double"`) or as the option
    `output_schema`; `registry:SUBJECT` takes the columns of a subject of the schema registry.
    """

    Options = RowOptions

    _decoder: ClassVar[Decoder | None] = None
    """None: the one of the setting `decode`."""

    @classmethod
    def schema_for(cls, options: Any) -> str | pa.Schema:
        """The schema, checked as far as it is known before the start.

        Raises:
            SchemaError: it does not parse.
            HandlerDefinitionError: there is no schema.
        """
        declared = getattr(options, "output_schema", None) or cls.output_schema
        if subject_of(declared) is not None:
            return str(declared)
        schema = parse_schema(declared)
        if not len(schema):
            raise HandlerDefinitionError(
                f"{cls.__name__} has no columns: set output_schema in a subclass, "
                "or give --option output_schema='carrier string, dep_delay double'"
            )
        if cls._decoder is not None:
            cls._decoder.columns(schema)
        return schema

    def process(self, batch: Batch, ctx: PartitionContext) -> None:
        """Emit a row for each value that fits, and fail the records of the others."""
        table, is_quick = ctx._decode_arrow(batch, self._decoder or ctx.decoder, ctx.output_schema)
        ctx.emit_arrow(table)
        # Values that are parsed one by one take long, and what a subclass does may block.
        self._quick = is_quick and type(self).process is DecodedRows.process

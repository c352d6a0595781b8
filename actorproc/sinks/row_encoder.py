"""The contract of encoders: how rows become the values of messages. `open_encoder` makes one from a sink's options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import orjson
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from actorproc import plugins
from actorproc.config.options import with_secrets
from actorproc.errors import UsageError
from actorproc.rows.json_values import rows_to_json
from actorproc.runtime.clock import Clock
from actorproc.sinks.options import SinkOptions

JSON = "json"


def _table(given: Any) -> Any:
    """A table, or its JSON. Values may be `@FILE`."""
    if isinstance(given, str):
        given = orjson.loads(given)
    return with_secrets("sink option schema_registry_options", given) if isinstance(given, Mapping) else given


class EncoderOptions(SinkOptions):
    """Options of a sink whose values are encoded rows."""

    encode: str = Field(JSON, description="Format of the values: json, avro, or one of another package.")
    schema_registry: str | None = Field(
        None, description="URL of a schema registry with Confluent's API. Needed by `encode = avro`."
    )
    schema_registry_options: Annotated[dict[str, Any], BeforeValidator(_table)] = Field(
        {}, repr=False, description="Options of the registry's client, such as `basic.auth.user.info`."
    )
    subject: str | None = Field(None, description="Subject of the schema. Default: the topic's name and `-value`.")
    register_schema: bool = Field(
        True, description="Whether to register the schema of the rows. If not, the subject's latest version is used."
    )

    @model_validator(mode="after")
    def _has_registry(self) -> EncoderOptions:
        if self.encode == JSON and (self.schema_registry or self.subject):
            raise ValueError("schema_registry and subject are for an encoded value, such as encode = avro")
        return self


class RowRefused(ValueError):
    """A row cannot be encoded.

    Args:
        number: of the row among those that were to be encoded, from 0.
    """

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class RowEncoder(ABC):
    """Encodes rows as values. Used by several threads at once."""

    async def open(self, schema: pa.Schema) -> None:
        """Prepare for rows of these columns. Called again after the target has refused rows.

        Raises:
            SinkRefused: the format cannot have such rows, or the registry refuses their schema.
            SinkError: the registry does not answer.
        """

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The value of each row, in order. CPU-heavy.

        Raises:
            RowRefused: a row cannot be encoded.
        """

    async def close(self) -> None:
        """Disconnect."""


class JsonEncoder(RowEncoder):
    """Each row as a JSON object."""

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return rows_to_json(rows)


def make_json(options: EncoderOptions, target: str, clock: Clock) -> RowEncoder:
    """The encoder of `encode = json`."""
    return JsonEncoder()


EncoderFactory = Callable[[EncoderOptions, str, Clock], RowEncoder]
"""Makes an encoder: `make(options, target, clock)`, where `target` is the topic, or the name of the sink.

Registered as `actorproc.encoders` under the value of `encode`. It connects to nothing yet, and raises UsageError for
wrong options.
"""


def open_encoder(options: EncoderOptions, target: str, clock: Clock) -> RowEncoder:
    """The encoder that the options name.

    Raises:
        UsageError: there is none of this name, an option is wrong, or an extra is not installed.
    """
    name, known = options.encode, plugins.names(plugins.ENCODERS)
    if name not in known:
        raise UsageError(f"encode = {name!r}: there is no such encoder; there are: {', '.join(known)}")
    return plugins.make(plugins.ENCODERS, name, RowEncoder, f"encode = {name}", options, target, clock)  # type: ignore[type-abstract]

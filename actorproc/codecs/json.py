"""JSON values, with and without a JSON Schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from actorproc.codecs.json_parsing import JsonParser
from actorproc.codecs.typed_values import TypedValues
from actorproc.handler.decoder import Columns, Decoder, Values


class JsonDecoder(Decoder):
    """Decodes JSON: into types with msgspec, into columns with Arrow."""

    def values(self, kind: Any = Any) -> Values[Any]:
        return TypedValues(kind)

    def columns(self, schema: pa.Schema) -> Columns:
        return JsonParser(schema)

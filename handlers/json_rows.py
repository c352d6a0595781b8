"""`JsonRows`: JSON objects become typed rows by a schema alone."""

from __future__ import annotations

from actorproc.codecs import JsonDecoder
from actorproc.handlers.decoded_rows import DecodedRows


class JsonRows(DecodedRows):
    """One row per record: the fields of its JSON object that the schema names, whatever the setting `decode` says.

    A value that does not fit is a dead letter. See `JsonParser` for the types.
    """

    _decoder = JsonDecoder()

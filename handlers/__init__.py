"""Ready-made handlers, on top of `actorproc.handler.base`."""

from __future__ import annotations

from actorproc.handlers.capture import Capture
from actorproc.handlers.decoded_rows import DecodedRows
from actorproc.handlers.json_rows import JsonRows
from actorproc.handlers.record_handler import RecordHandler

__all__ = ["Capture", "DecodedRows", "JsonRows", "RecordHandler"]

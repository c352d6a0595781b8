"""Ready-made handlers, on top of `actorproc.handler.base`."""

from __future__ import annotations

from actorproc.handlers.capture import Capture
from actorproc.handlers.decoded_rows import DecodedRows
from actorproc.handlers.dedupe import Dedupe
from actorproc.handlers.json_rows import JsonRows
from actorproc.handlers.latest import Latest
from actorproc.handlers.record_handler import RecordHandler
from actorproc.handlers.sequences import SequenceHandler
from actorproc.handlers.sessions import Sessions

__all__ = ["Capture", "DecodedRows", "Dedupe", "JsonRows", "Latest", "RecordHandler", "SequenceHandler", "Sessions"]

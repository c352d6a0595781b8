"""The names that sources, stores, sinks, decoders, encoders and commands of other packages may use. See docs/extend.md.

Errors are in `actorproc.errors`. Until 1.0 a name may change, and CHANGELOG.md says so.
"""

from actorproc.config.options import parse_options
from actorproc.config.settings import Settings
from actorproc.handler.decoder import Columns, Decoder, Parsed, Values
from actorproc.records import Batch, Cursor, Record
from actorproc.runtime.budget import ReadBudget
from actorproc.runtime.clock import Clock
from actorproc.sinks.options import SinkOptions
from actorproc.sinks.protocol import (
    Delivery,
    Guarantee,
    Sink,
    SinkError,
    SinkMoved,
    SinkPlace,
    SinkRefused,
    SinkRow,
)
from actorproc.sinks.row_encoder import EncoderOptions, RowEncoder, RowRefused
from actorproc.sinks.sql import SqlOptions, SqlSink
from actorproc.sources import open_source
from actorproc.sources.patience import Patience
from actorproc.sources.protocol import Chunk, End, Partition, Source, Start
from actorproc.sources.replay_target import Appendable
from actorproc.storage.backend import Backend, Entry, Hadoop, Listing, NotModified, Stored
from actorproc.stores import open_store

__all__ = [
    "Appendable",
    "Backend",
    "Batch",
    "Chunk",
    "Clock",
    "Columns",
    "Cursor",
    "Decoder",
    "Delivery",
    "EncoderOptions",
    "End",
    "Entry",
    "Guarantee",
    "Hadoop",
    "Listing",
    "NotModified",
    "Parsed",
    "Partition",
    "Patience",
    "ReadBudget",
    "Record",
    "RowEncoder",
    "RowRefused",
    "Settings",
    "Sink",
    "SinkError",
    "SinkMoved",
    "SinkOptions",
    "SinkPlace",
    "SinkRefused",
    "SinkRow",
    "Source",
    "SqlOptions",
    "SqlSink",
    "Start",
    "Stored",
    "Values",
    "open_source",
    "open_store",
    "parse_options",
]

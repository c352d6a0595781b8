"""What a Delta log says at one version: files, application transactions, columns and protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import orjson

from actorproc.connectors.delta.schema import PARTITION
from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.tables.protocol import NamedFiles, Place
from actorproc.storage.names import ProcessorLayout

APP = "actorproc/"
"""Begins the ids of our application transactions."""

_READER_FEATURES = frozenset({"timestampNtz"})
_WRITER_FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants"})

Action = dict[str, Any]


class Named(NamedTuple):
    """A file that the table names."""

    partition: str | None
    size: int
    time: int
    """In milliseconds since 1970."""
    stats: str | None


class DeltaState:
    """The replay of a log up to `version`.

    Args:
        identity: of the processor, whose counters are kept apart.
    """

    def __init__(self, layout: ProcessorLayout, identity: str) -> None:
        self._layout, self._folder = layout, layout.output
        self._ours = f"{APP}{identity}/"
        self.clear()

    def clear(self) -> None:
        """Begin anew: nothing was read."""
        self.version = -1
        self.protocol: Action = {}
        self.metadata: Action = {}
        self.txns: dict[str, int] = {}
        self.adds: dict[str, Named] = {}  # by path as in the log
        self.files = NamedFiles(self._layout)
        self.places: dict[str, Place] = {}

    @property
    def count(self) -> int:
        return self.txns.get(f"{self._ours}count", 0)

    @property
    def life(self) -> int:
        return self.txns.get(f"{self._ours}life", 0)

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Go on to `version` by the actions of its entry."""
        for action in actions:
            for name, content in action.items():
                match name:
                    case "add":
                        self._add(content)
                    case "remove":
                        self._remove(content["path"])
                    case "txn":
                        self._txn(content)
                    case "metaData":
                        self.metadata = content
                    case "protocol":
                        self.protocol = content
                    case _:  # commitInfo, and what only those need who know its feature
                        pass
        self.version = version

    def check(self) -> None:
        """Check that we may change this table.

        Raises:
            SinkRefused: somebody has given it features that this connector does not have, or other partition columns.
        """
        features = self.protocol
        reader = set(features.get("readerFeatures") or ()) - _READER_FEATURES
        writer = set(features.get("writerFeatures") or ()) - _WRITER_FEATURES
        versions = features.get("minReaderVersion", 1), features.get("minWriterVersion", 2)
        if reader or writer or (versions[0] not in (1, 3)) or versions[1] not in (1, 2, 7):
            named = ", ".join(sorted(reader | writer)) or f"reader version {versions[0]}, writer version {versions[1]}"
            raise SinkRefused(
                f"the Delta table was given features that actorproc does not write ({named}): take them back, or "
                "delete its _delta_log, and it is made anew"
            )
        if self.metadata.get("partitionColumns") != [PARTITION]:
            if not self.metadata:
                raise SinkRefused("the folder has no Delta table any more: `actorproc sinks repair` makes it anew")
            raise SinkRefused("there is a Delta table in the folder that is not partitioned by `partition` alone")
        if (self.metadata.get("configuration") or {}).get("delta.appendOnly") == "true":
            raise SinkRefused("the Delta table is append-only: unset delta.appendOnly, as trims remove files from it")

    @property
    def fields(self) -> list[Action]:
        """The columns."""
        fields: list[Action] = orjson.loads(self.metadata["schemaString"])["fields"]
        return fields

    def key_of(self, path: str) -> str | None:
        """The key of a file in the container; None: it is elsewhere."""
        elsewhere = path.startswith("/") or (":" in path and urlsplit(path).scheme)
        return None if elsewhere else self._folder + (unquote(path) if "%" in path else path)

    def path_of(self, key: str) -> str:
        """How the log spells a file of the container: relative to the table, as a URI."""
        return quote(key.removeprefix(self._folder), safe="/=-_.~")

    def counters(self, count: int, life: int, places: dict[str, Place]) -> list[Action]:
        """The application transactions that differ from the known ones. Without a time, they never expire."""
        wanted = {f"{self._ours}count": count, f"{self._ours}life": life}
        for partition, place in places.items():
            prefix = f"{self._ours}{quote(partition, safe='')}/"
            wanted |= {f"{prefix}{name}": number for name, number in place._asdict().items()}
        return [
            {"txn": {"appId": app, "version": version}}
            for app, version in wanted.items()
            if self.txns.get(app) != version
        ]

    def _add(self, content: Action) -> None:
        path = content["path"]
        partition = (content.get("partitionValues") or {}).get(PARTITION)
        self.adds[path] = Named(
            partition, int(content.get("size") or 0), int(content.get("modificationTime") or 0), content.get("stats")
        )
        self.files.add(self.key_of(path), path, partition)

    def _remove(self, path: str) -> None:
        self.adds.pop(path, None)
        self.files.remove(self.key_of(path), path)

    def _txn(self, content: Action) -> None:
        app, version = content["appId"], int(content["version"])
        self.txns[app] = version
        if app.startswith(self._ours) and app.count("/") == self._ours.count("/") + 1:
            name, _, counter = app.removeprefix(self._ours).partition("/")
            partition = unquote(name)
            place = self.places.get(partition, Place(0, -1))
            if counter in Place._fields:
                self.places[partition] = place._replace(**{counter: version})

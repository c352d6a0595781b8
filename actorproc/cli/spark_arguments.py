"""The arguments of `actorproc spark`, checked before Spark takes its seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from actorproc.admin.java import check_java
from actorproc.cli.common import pairs
from actorproc.cli.loading import load_function
from actorproc.config.settings import Settings
from actorproc.config.units import duration
from actorproc.errors import HandlerDefinitionError, UsageError
from actorproc.spark.errors import needs_active_session
from actorproc.spark.hadoop import check_outside, spark_url, store_url
from actorproc.spark.options import explicit_settings_as_options, settings_as_options
from actorproc.spark.query import Sink
from actorproc.spark.session import ConnectSession, Session
from actorproc.spark.session_options import AVAILABLE_NOW, default_master, session_options

_LOG = "actorproc"  # the format of our own sink: it opens the log with our settings
_NEED_PATH = ("parquet", "orc", "json", "csv", "text", "avro", "delta", _LOG)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkArguments:
    """The command line; `trigger` and the durations as they were typed."""

    function: str
    name: str
    container: str
    checkpoint: str
    to: str
    path: str | None
    mode: str | None
    options: Mapping[str, str]
    trigger: str
    max_rows: int | None
    max_files: int | None
    columns: Sequence[str] | None
    native: bool
    master: str | None
    remote: str | None
    packages: Sequence[str]
    conf: Mapping[str, str]
    max_failures: int
    stop_within: str
    wait: str

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Parse the parameters of `actorproc spark`.

        Raises:
            UsageError: an --option or --conf is not NAME=VALUE.
        """
        options = pairs("--option", given["option"])
        path = given["path"] or options.pop("path", None)
        parsed = {"path", "options", "columns", "packages", "conf"}
        return cls(
            **{field.name: given[field.name] for field in fields(cls) if field.name not in parsed},
            path=path,
            options=options,
            columns=[name.strip() for name in given["columns"].split(",")] if given["columns"] else None,
            packages=given["package"] or [],
            conf=pairs("--conf", given["conf"]),
        )

    def check(self, command: str) -> None:
        """Check everything that needs neither the store nor Spark. `command`: needs Java, for the message.

        Raises:
            UsageError: an argument is wrong, or something is missing on this machine.
        """
        if self.to.lower() in _NEED_PATH and self.path is None:
            raise UsageError(f"--to {self.to} needs --path URL: the {'log' if self._to_log else 'folder of the table'}")
        self.trigger_keywords()
        self.seconds("stop_within")
        self.seconds("wait")
        if self.remote is None:
            self.load_early()
            check_java(command)
        elif self.master or self.packages:
            raise UsageError(
                "--remote (or SPARK_REMOTE) uses a running server: --master and --package do not go with it"
            )

    def load_early(self) -> Callable[..., Any] | None:
        """The function; None if its module needs an open session to be imported, or exists for the server only."""
        try:
            return load_function(self.function)
        except HandlerDefinitionError as error:
            if needs_active_session(error.__cause__):  # as the decorator @udf("int") does
                return None
            raise

    def seconds(self, option: str) -> float:
        """The value of `stop_within` or `wait`."""
        return duration(f"--{option.replace('_', '-')}", getattr(self, option))

    def trigger_keywords(self) -> dict[str, Any]:
        """Keywords of `DataStreamWriter.trigger`."""
        if self.trigger == "available-now":
            return {"availableNow": True}
        return {"processingTime": f"{round(duration('--trigger', self.trigger) * 1000)} milliseconds"}

    @property
    def _to_log(self) -> bool:
        return self.to.lower() == _LOG

    def urls(self, container: str, settings: Settings) -> dict[str, str]:
        """`checkpoint`, and `path` if it is given, in the spelling of the program that writes there.

        Raises:
            UsageError: one overlaps the processor's own folder.
        """
        urls = {}
        for name, url in (("checkpoint", self.checkpoint), ("path", self.path)):
            if url is not None:
                check_outside(f"--{name}", url, container, self.name, settings)
                urls[name] = (store_url if name == "path" and self._to_log else spark_url)(url, settings)
        return urls

    def spark_settings(self, settings: Settings, typed: set[str]) -> Settings:
        """Settings for Spark's processes. A Connect server has its own; it only gets those that were `typed`."""
        if not self.remote:
            return settings
        options = {name: value for name, value in settings.store_options.items() if name in typed}
        return Settings.model_construct(typed, **settings.model_dump()).with_store_options(options)

    def sink(self, path: str | None, settings: Settings) -> Sink:
        """The sink of a DataFrame. Our own sink also gets the settings of the store."""
        options = explicit_settings_as_options(settings) if self.remote else settings_as_options(settings)
        return Sink(self.to, path, self.mode, {**(options if self._to_log else {}), **self.options})

    def session(self, urls: Mapping[str, str], settings: Settings) -> Session:
        """The session, not started yet. `urls`: as `self.urls`, and of a container that Spark's own reader reads."""
        if self.remote:
            return ConnectSession(self.remote, {"spark.sql.session.timeZone": "UTC", **AVAILABLE_NOW, **self.conf})
        options = session_options(
            self.master or default_master(), app=f"actorproc spark {self.function}", packages=self.packages,
            conf=self.conf, urls=[url for name, url in urls.items() if name != "path" or not self._to_log],
            settings=settings,
        )  # fmt: skip
        return Session(options["spark.master"], options)

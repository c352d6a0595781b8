"""Spark sessions: in a Java process of their own, or on a Spark Connect server."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from actorproc.errors import QueryFailed, UsageError
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.requirements import how_to_install
from actorproc.spark.errors import error_text, shorten
from actorproc.spark.session_options import launch_options, redacted, session_environment

_CLOSE_TIMEOUT = 10.0  # seconds; Java ends with this process in any case
_CONNECT_TIMEOUT = 60.0  # seconds until a Spark Connect server must answer
_EXECUTORS_TIMEOUT = 20.0  # seconds from the session's start in which a cluster's first executors are awaited
_EXECUTORS_SETTLED = 3.0  # seconds without a new executor, after which no more are awaited
_TOKEN = re.compile(r"(?i)(token=)[^;]*")


class Session:
    """A session in a Java process of its own.

    Args:
        master: for messages.
        options: see `session_options`.
    """

    def __init__(self, master: str, options: Mapping[str, str]) -> None:
        self.master = master
        self._options: dict[str, Any] = dict(options)
        self._current: SparkSession | None = None

    def open(self) -> SparkSession:
        """The session. The first call starts it, which takes seconds, or minutes if packages are downloaded.

        Raises:
            QueryFailed: Spark does not start.
            UsageError: a Python package is missing.
        """
        if self._current is None:
            _silence_pyspark()
            try:
                self._current = self._start()
            except (PySparkException, Py4JError, OSError) as error:
                why = shorten(error_text(error))
                if "stopped SparkContext" in why:  # Spark stops it when it gives up
                    why = "no Spark master of this version answers there"
                raise QueryFailed(f"Spark does not start on {self.master}: {why}") from error
        return self._current

    def reopen(self) -> SparkSession:
        """The session for a query that failed."""
        return self.open()

    def activate(self) -> None:
        """See the function `activate`."""
        activate(self.open())

    def ship_module(self, module: str) -> None:
        """Make a module of the user's available to tasks. Here they import it from the same path as this process."""

    def close(self) -> None:
        """Stop the session; give up after 10 seconds."""
        if (current := self._current) is not None:
            with suppress(Py4JError, PySparkException, OSError):  # it may have ended by itself
                finished_within(_CLOSE_TIMEOUT, lambda: self._stop(current))

    def description(self) -> dict[str, str]:
        """Options and environment variables without secrets."""
        return redacted(self._options) | session_environment()

    def ui_url(self) -> str | None:
        """URL of Spark's UI."""
        return self.open().sparkContext.uiWebUrl

    def _start(self) -> SparkSession:
        os.environ.update(session_environment())
        # Java is started before the context, with few options as arguments: every user of the machine can read them.
        # The context gets all options, over Py4J's authenticated socket.
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(launch_options(self._options).items())))
        return SparkSession.builder.config(map=self._options).getOrCreate()

    def _stop(self, session: SparkSession) -> None:
        session.stop()


class ConnectSession(Session):
    """A session on a Spark Connect server, which has its own environment, JARs and settings.

    Args:
        url: `sc://HOST:PORT/;token=...`. The token is never shown.
        options: the session's options.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(_TOKEN.sub(r"\1***", url), options)
        self._url = url

    def reopen(self) -> SparkSession:
        """A new session: the old one may have died with its server. If not, it is stopped, or the server would keep
        it."""
        self.close()
        self._current = None
        return self.open()

    def activate(self) -> None:
        """Nothing to do: the server knows the session of each call."""

    def ship_module(self, module: str) -> None:
        """Pickle functions of the module by value: the server has no such module."""
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]

    def description(self) -> dict[str, str]:
        return redacted(self._options)

    def ui_url(self) -> str | None:
        return None

    def _start(self) -> SparkSession:
        try:
            self._wait_for_server()
            session: SparkSession = SparkSession.builder.remote(self._url).config(map=self._options).create()
        except ValueError:
            raise UsageError(
                f"{self.master!r}: write sc://HOST:PORT, or sc://HOST:PORT/;NAME=VALUE;NAME=VALUE"
            ) from None
        except ImportError as error:
            raise UsageError(f"Spark Connect needs more packages ({error}): {how_to_install('connect')}") from None
        return session

    def _wait_for_server(self) -> None:
        """Wait until the server answers. Spark's own client would try for ten minutes in silence.

        Raises:
            QueryFailed: it does not answer.
        """
        import grpc  # type: ignore[import-untyped]
        from pyspark.sql.connect.client import DefaultChannelBuilder

        with DefaultChannelBuilder(self._url).toChannel() as channel:
            try:
                grpc.channel_ready_future(channel).result(_CONNECT_TIMEOUT)
            except grpc.FutureTimeoutError:
                raise QueryFailed(
                    f"no Spark Connect server answers at {self.master}, tried for {_CONNECT_TIMEOUT:g} s"
                ) from None

    def _stop(self, session: SparkSession) -> None:
        # With its retries the client would ask a dead server for ten minutes, and block every new session meanwhile.
        session.client.set_retry_policies([])
        session.stop()


def activate(spark: SparkSession) -> None:
    """Make it the calling thread's session, in which Spark looks for a Python data source that is written to."""
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def is_connect(spark: object) -> bool:
    """Whether this is a session of Spark Connect, whose driver and settings are on the server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once: `spark.default.parallelism` if it is set, otherwise the number of cores.

    The executors of a cluster register some seconds after the session has started. Until then Spark reports two cores,
    and a stream planned for two tasks keeps them for as long as it runs. So this waits for the executors.
    """
    context = spark.sparkContext
    if not str(context.master).startswith("local") and not context.getConf().contains("spark.default.parallelism"):
        _wait_for_executors(context)
    return context.defaultParallelism


def _wait_for_executors(context: Any) -> None:
    executors, since = 0, SYSTEM.wall()
    while SYSTEM.wall() < context.startTime / 1000 + _EXECUTORS_TIMEOUT:
        found = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is counted, too
        if found != executors:
            executors, since = found, SYSTEM.wall()
        if executors and SYSTEM.wall() - since > _EXECUTORS_SETTLED:
            return
        time.sleep(0.1)


def finished_within(seconds: float, work: Callable[[], object]) -> bool:
    """Run blocking `work` and return whether it finished in time.

    If not, it continues in a daemon thread, which does not keep this process alive.

    Raises:
        Exception: raised by `work` in time.
    """
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            outcome.set_exception(error)

    threading.Thread(target=run, name="actorproc-bounded", daemon=True).start()
    if not wait([outcome], seconds).done:
        return False
    outcome.result()
    return True


def _silence_pyspark() -> None:
    """PySpark and Py4J log each error in pages of Java and Python, and then raise it as well."""
    logging.getLogger().addFilter(_is_not_from_py4j)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"

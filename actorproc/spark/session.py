"""The Spark session of a query: what Spark is told, and how it is started, or connected to."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from actorproc.config.settings import Settings
from actorproc.errors import QueryFailed, UsageError
from actorproc.runtime.extras import how_to_install
from actorproc.runtime.logger import get_logger
from actorproc.spark.data_source import LIMITS
from actorproc.spark.errors import error_text, shorten
from actorproc.spark.native import native_options
from actorproc.spark.time_limit import ends_within

log = get_logger(__name__)

_HOME = Path(pyspark.__file__).parent
_SDK = "2.35.4"  # of the AWS SDK: the parts that s3a needs are 19 MB, its bundle 686
_S3A = ("s3", "s3-transfer-manager", "sts", "apache-client")
_CLOSING = 10.0  # seconds that Spark has to end in good order; its Java ends with this process in any case
_REACH = 60.0  # seconds that a Spark Connect server has to answer at first
_SILENT = 5.0  # of them, before a word is said
_TOKEN = re.compile(r"(?i)(token=)[^;]*")
_PAIR = r"[^;=]+=[^;=]*"
_REMOTE = re.compile(
    rf"sc://(?:[^\s/:;?#\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(\d{{0,5}}))?(?:/(?:;(?:{_PAIR}(?:;{_PAIR})*)?)?)?"
)
_LARGEST_PORT = 65535
_SECRET = re.compile(r"(?i)secret|passw|passphrase|pwd|token|credential|private|(api|access|account)[._]?key")
_IN_JAVA = re.compile(r"-D([^\s=]+)=(\"[^\"]*\"|\S+)")


class Session:
    """A session in a Java of its own.

    Args:
        place: the master, for people.
        options: what Spark is told; see `session_options`.
    """

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        self.place = place
        self._options: dict[str, Any] = dict(options)
        self._current: SparkSession | None = None

    def open(self) -> SparkSession:
        """The session; started if there is none yet, which takes seconds, and with packages to fetch minutes.

        Raises:
            QueryFailed: Spark does not start. UsageError: a package is missing.
        """
        if self._current is None:
            _hush()
            try:
                self._current = self._start()
            except (PySparkException, Py4JError, OSError) as error:
                why = shorten(error_text(error))
                if "JAVA_GATEWAY_EXITED" in why:
                    why = "its Java ended at once, and has said why above"
                    if "spark.jars.packages" in self._options:
                        why += " (under UNRESOLVED DEPENDENCIES: packages that it did not find)"
                elif "stopped SparkContext" in why and self.place.startswith("spark://"):
                    # It stops when it gives up.
                    why = "no Spark master of this version answers there"
                raise QueryFailed(f"Spark does not start on {self.place}: {why}") from error
        return self._current

    def again(self) -> SparkSession:
        """The session for a query that failed."""
        return self.open()

    def enter(self) -> None:
        """Make it that of the calling thread, where Spark looks for a Python data source that is written to."""
        spark = self.open()
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)

    def carry(self, module: str) -> None:
        """See that tasks have what is in a module of the user's. Here they find it where this process does."""

    def close(self) -> None:
        """End it, in good order if that does not take long."""
        if (current := self._current) is not None:
            with suppress(Py4JError, PySparkException, OSError):  # it may have ended by itself
                ends_within(_CLOSING, lambda: self._stop(current))

    def told(self) -> dict[str, str]:
        """Options and variables for people, without secrets."""
        return self._shown() | _environment()

    def _shown(self) -> dict[str, str]:
        return {
            name: "***" if _SECRET.search(name) else _without_secrets(value) for name, value in self._options.items()
        }

    def page(self) -> str | None:
        """URL of Spark's own page on what runs."""
        return self.open().sparkContext.uiWebUrl

    def _start(self) -> SparkSession:
        os.environ.update(_environment())
        return SparkSession.builder.config(map=self._options).getOrCreate()

    def _stop(self, session: SparkSession) -> None:
        session.stop()


def _without_secrets(value: str) -> str:
    """Of an option that holds flags for Java."""
    return _IN_JAVA.sub(lambda flag: f"-D{flag[1]}=***" if _SECRET.search(flag[1]) else flag[0], value)


class RemoteSession(Session):
    """A session on a Spark Connect server, which has its own environment, jars and settings.

    Args:
        url: `sc://HOST:PORT/;token=...`; the token is not shown.
        options: what it is told.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(_without_token(url), options)
        self._url = url

    def again(self) -> SparkSession:
        """A new one: the old one may have died with its server. If it has not, the server would keep it and all that is in it."""
        self.close()
        self._current = None
        return self.open()

    def enter(self) -> None:
        """The server knows whom it works for."""

    def carry(self, module: str) -> None:
        """Send functions of a module whole, not by name: the server has no such module."""
        cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]

    def told(self) -> dict[str, str]:
        return self._shown()

    def page(self) -> str | None:
        return None

    def _start(self) -> SparkSession:
        try:
            self._reach()
            session: SparkSession = SparkSession.builder.remote(self._url).config(map=self._options).create()
        except ImportError as error:
            raise UsageError(f"Spark Connect needs more packages ({error}): {how_to_install('connect')}") from None
        return session

    def _reach(self) -> None:
        """Wait until the server answers. Spark's own client would try for ten minutes, without a word.

        Raises:
            QueryFailed: it does not.
        """
        import grpc  # type: ignore[import-untyped]
        from pyspark.sql.connect.client import DefaultChannelBuilder

        with DefaultChannelBuilder(self._url).toChannel() as channel:
            ready = grpc.channel_ready_future(channel)
            with suppress(grpc.FutureTimeoutError):
                ready.result(_SILENT)
                return
            log.info("spark.waiting", on=self.place, why="no Spark Connect server answers there yet")
            try:
                ready.result(_REACH - _SILENT)
            except grpc.FutureTimeoutError:
                raise QueryFailed(f"no Spark Connect server answers at {self.place}, tried for {_REACH:g} s") from None

    def _stop(self, session: SparkSession) -> None:
        # Else a dead server is asked for ten minutes, and nobody gets another session meanwhile.
        session.client.set_retry_policies([])
        session.stop()


def check_remote(url: str) -> None:
    """Check the URL of a Spark Connect server.

    Raises:
        UsageError: Spark would not take it; says what is allowed.
    """
    found = _REMOTE.fullmatch(url)
    if found is None or int(found[1] or 0) > _LARGEST_PORT:
        raise UsageError(
            f"--remote (or SPARK_REMOTE) {_without_token(url)!r}: write sc://HOST:PORT, such as sc://spark.example.org:15002; "
            "with parameters sc://HOST:PORT/;NAME=VALUE;NAME=VALUE"
        )


def _without_token(url: str) -> str:
    return _TOKEN.sub(r"\1***", url)


_ARROW = "-Darrow.enable_unsafe_memory_access=true"
"""Java's Arrow checks the bounds of each value that it takes out of a batch. Spark stays within the rows that the batch tells,
and without the checks it takes rows of the data source an eighth faster."""

SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags for a driver that lives for minutes: it starts sooner, stays small, and never gets to its full speed."""


TO_THE_END = {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"} if not LIMITS else {}
"""PySpark 4.1 takes `availableNow` of a Python data source for one micro-batch: after a crash that is the one that was begun,
and what came in since stays where it is."""

_TRIES = 4  # of a task: what Spark has for clusters; its own default for `local` is one
_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
_MASTER = re.compile(r"local\[(\d+|\*)\s*,\s*\d+\]|local-cluster\[.+\]|spark://.+:\d+|k8s://.+|yarn")


def default_master() -> str:
    """All cores of this machine."""
    return f"local[{os.cpu_count() or 1},{_TRIES}]"


def _with_tries(master: str) -> str:
    """The master; of this machine with the tries of a task, where they are not said.

    Raises:
        UsageError: Spark would not know it, and say so in a page of Java.
    """
    if (local := _LOCAL.fullmatch(master)) is not None:
        return f"local[{local[1] or 1},{_TRIES}]"
    if _MASTER.fullmatch(master) is None:
        raise UsageError(f"--master {master!r}: write local[4], local[*], spark://HOST:PORT, yarn or k8s://URL")
    return master


def session_options(
    master: str, *, app: str, packages: Sequence[str] = (), conf: Mapping[str, str] | None = None,
    urls: Sequence[str] = (), settings: Settings | None = None, java: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """What Spark is told.

    Args:
        master: tasks of `local`, `local[N]` and `local[*]` are tried four times, too; `local[N,TRIES]` stays as it is.
        app: its name on Spark's pages.
        packages: Maven coordinates.
        conf: options that win over ours.
        urls: what Spark itself reads and writes, as it spells them: `s3a://` among them brings the jars for it and,
            from `settings`, endpoint and keys.
        java: flags of the driver's.

    Raises:
        UsageError: Spark knows no such master.
    """
    master = _with_tries(master)
    local = master.startswith("local")
    options = {
        "spark.master": master,
        "spark.api.mode": "classic",
        "spark.app.name": app,
        "spark.sql.session.timeZone": "UTC",
        **TO_THE_END,
        "spark.ui.port": "0",  # a free one
        "spark.ui.showConsoleProgress": "false",
    }
    if "SPARK_CONF_DIR" not in os.environ:
        java = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}", *java]
    options["spark.driver.extraJavaOptions"] = " ".join([_ARROW, *java])
    if local:
        # The default of 200 is for clusters: a small stream would do little but open and close 200 states.
        options["spark.sql.shuffle.partitions"] = str(_cores(master))
    else:
        options["spark.executorEnv.PYTHONPATH"] = _python_path()
        options["spark.executor.extraJavaOptions"] = _ARROW
    if local or _is_loopback(master):
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    packages = list(packages)
    if any(url.startswith("s3a://") for url in urls):
        packages += _s3a_packages()
        options["spark.jars.excludes"] = "software.amazon.awssdk:bundle"
        reach = native_options("s3a://", settings or Settings.load())
        options |= {f"spark.hadoop.{name}": value for name, value in reach.items()}
    if packages:
        options["spark.jars.packages"] = ",".join(packages)
    return options | dict(conf or {})


def _environment() -> dict[str, str]:
    """Variables that Spark's processes on this machine need: the Python of tasks, and where they find modules."""
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable), "PYTHONPATH": _python_path()}


def _python_path() -> str:
    """Where tasks find what this process finds: modules of the user's beside it, and actorproc from a checkout."""
    found = [str(Path.cwd())]
    root = Path(__file__).parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        found.append(str(root))
    found += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in found if path))


def _s3a_packages() -> list[str]:
    """What Spark needs to reach S3 by itself, from Maven Central, for the Hadoop that this PySpark brings."""
    jar = next(_HOME.glob("jars/hadoop-client-api-*.jar"), None)
    if jar is None:
        raise UsageError(
            f"{_HOME} has no Hadoop, so it does not tell which hadoop-aws goes with it: name it by --package"
        )
    hadoop = jar.stem.removeprefix("hadoop-client-api-")
    return [f"org.apache.hadoop:hadoop-aws:{hadoop}", *(f"software.amazon.awssdk:{part}:{_SDK}" for part in _S3A)]


def _hush() -> None:
    """Errors of analysis, and those of a Java that has ended, reach us as exceptions; PySpark and Py4J log them as well, with
    pages of Java and Python."""
    logging.getLogger().addFilter(_is_not_py4js)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _cores(master: str) -> int:
    """Of `local`, `local[2]`, `local[2,4]`, `local[*]`."""
    given = re.match(r"local\[(\d+|\*)", master)
    if given is None:
        return 1
    return (os.cpu_count() or 1) if given[1] == "*" else int(given[1])


def _is_loopback(master: str) -> bool:
    host = master.partition("://")[2].partition(",")[0].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

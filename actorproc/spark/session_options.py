"""The options and environment variables of a Spark session in a Java process of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from actorproc.config.settings import Settings
from actorproc.spark.hadoop import packages_of, places
from actorproc.spark.stream_reader import LIMITS

_NO_BOUNDS_CHECK = "-Darrow.enable_unsafe_memory_access=true"
"""Java's Arrow checks the bounds of each value that it reads. Without the checks a full scan through the data source
takes an eighth less time (docs/performance.md, "A full scan")."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java flags for a driver that lives for minutes: it starts sooner and stays small, but never reaches full speed."""

AVAILABLE_NOW = {} if LIMITS else {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}
"""Without this option PySpark 4.1 runs `availableNow` over a Python data source as one micro-batch: after a crash it
repeats that one, and leaves later rows unread."""

_TASK_TRIES = 4  # Spark's default on clusters; its default for `local` is 1
_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")
_LOCAL_CORES = re.compile(r"local\[(\d+|\*)")
_SECRET = re.compile(r"(?i)secret|passw|passphrase|pwd|token|credential|private|(api|access|account)[._]?key")
_LAUNCH = re.compile(
    r"spark\.(master|app\.name|api\.mode|(driver|jars|files|archives|pyFiles|submit|log|kerberos|yarn|kubernetes)(\..*)?)"
)
"""Options that `spark-submit` itself uses, to start Java and to fetch files."""

_JAVA_PROPERTY = re.compile(r"-D([^\s=]+)=(\"[^\"]*\"|\S+)")


def default_master() -> str:
    """All cores of this machine."""
    return f"local[{os.cpu_count() or 1},{_TASK_TRIES}]"


def session_options(
    master: str, *, app: str, packages: Sequence[str] = (), conf: Mapping[str, str] | None = None,
    urls: Sequence[str] = (), settings: Settings | None = None, java: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """The options of a session.

    Args:
        master: `local`, `local[N]` and `local[*]` get four tries per task; `local[N,TRIES]` is left as it is.
        app: the application's name in Spark's UI.
        packages: Maven coordinates.
        conf: options that override ours.
        urls: locations that Spark itself reads and writes, in its spelling. Each store adds its JARs, and its options
            from `settings`, such as endpoint and keys.
        java: flags for the driver's Java.
    """
    master = _with_tries(master)
    options = {
        "spark.master": master,
        "spark.api.mode": "classic",
        "spark.app.name": app,
        "spark.sql.session.timeZone": "UTC",
        **AVAILABLE_NOW,
        "spark.ui.port": "0",  # any free port
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join([_NO_BOUNDS_CHECK, *_log_config(), *java]),
        **(_local_options(master) if master.startswith("local") else _cluster_options(master)),
        **_jar_options(packages, urls, settings),
    }
    return options | dict(conf or {})


def _with_tries(master: str) -> str:
    local = _LOCAL.fullmatch(master)
    return master if local is None else f"local[{local[1] or 1},{_TASK_TRIES}]"


def _log_config() -> list[str]:
    if "SPARK_CONF_DIR" in os.environ:
        return []
    return [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"]


_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _local_options(master: str) -> dict[str, str]:
    """A small stream with Spark's 200 shuffle partitions would do little but open and close 200 states."""
    given = _LOCAL_CORES.match(master)
    cores = 1 if given is None else (os.cpu_count() or 1) if given[1] == "*" else int(given[1])
    return {"spark.sql.shuffle.partitions": str(cores), **_LOOPBACK}


def _cluster_options(master: str) -> dict[str, str]:
    options = {"spark.executorEnv.PYTHONPATH": _python_path(), "spark.executor.extraJavaOptions": _NO_BOUNDS_CHECK}
    return options | (_LOOPBACK if master.startswith(("spark://localhost:", "spark://127.")) else {})


def _jar_options(packages: Sequence[str], urls: Sequence[str], settings: Settings | None) -> dict[str, str]:
    found = list(places(urls, settings or Settings.load())) if urls else []
    packages = [*packages, *(package for place in found for package in packages_of(place))]
    excludes = [package for place in found for package in place.excludes]
    options = {f"spark.hadoop.{name}": value for place in found for name, value in place.options.items()}
    lists = {"spark.jars.packages": packages, "spark.jars.excludes": excludes}
    return options | {name: ",".join(dict.fromkeys(items)) for name, items in lists.items() if items}


def launch_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are needed before there is a session, without secrets: they become arguments of processes."""
    return {name: value for name, value in options.items() if _LAUNCH.fullmatch(name) and not _SECRET.search(name)}


def session_environment() -> dict[str, str]:
    """Variables for Spark's processes on this machine: the tasks' Python, and where it finds modules."""
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable), "PYTHONPATH": _python_path()}


def _python_path() -> str:
    """The working directory, the checkout of actorproc (if it is one), and this process's `PYTHONPATH`."""
    found = [str(Path.cwd())]
    root = Path(__file__).parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        found.append(str(root))
    found += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in found if path))


def redacted(options: Mapping[str, str]) -> dict[str, str]:
    """The options without secrets, also without those among Java's flags."""
    return {name: "***" if _SECRET.search(name) else _redacted_flags(value) for name, value in options.items()}


def _redacted_flags(value: str) -> str:
    return _JAVA_PROPERTY.sub(lambda flag: f"-D{flag[1]}=***" if _SECRET.search(flag[1]) else flag[0], value)

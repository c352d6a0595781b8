"""Finds the Java that Spark would start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from actorproc.errors import UsageError

JAVA = 17
"""The oldest Java that Spark 4 runs on (https://spark.apache.org/docs/latest/#downloading)."""

_HOW = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless or openjdk-21-jre-headless; "
    "macOS: brew install openjdk@17; others: https://adoptium.net) and put it on PATH or in JAVA_HOME"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # Java 8 calls itself 1.8


def check_java(what: str) -> None:
    """Check that Java is installed for the command `what`, which runs Spark.

    Raises:
        UsageError: Java is missing or too old; says how to install it.
    """
    java, version = find_java()
    if version is None:
        raise UsageError(f"{what} needs Java {JAVA} or newer for Spark, and {java}: {_HOW}")
    if version < JAVA:
        raise UsageError(f"{what} needs Java {JAVA} or newer for Spark, and {java} is Java {version}: {_HOW}")


def find_java() -> tuple[str, int | None]:
    """The path and version of the Java that Spark would start; or the problem, and None.

    The rule of Spark's script `spark-class`: the one in JAVA_HOME if that is set, otherwise the one on PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return "there is none on PATH", None
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        where = f"JAVA_HOME={home}" if home else java
        return f"{where} does not start one", None
    found = _VERSION.search(asked.stderr + asked.stdout)
    return (java, int(found[1])) if found else (f"{java} does not tell its version", None)

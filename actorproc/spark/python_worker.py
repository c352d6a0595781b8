"""What Spark calls, it calls in Python processes of its own: a few beside its driver, and those of the tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from actorproc.errors import SourceError, UsageError

P = ParamSpec("P")
T = TypeVar("T")


def called_by_spark(method: Callable[P, T]) -> Callable[P, T]:
    """A method that Spark calls. What it says of wrong use says all; Spark would show the way through our code above it."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        _settle()
        try:
            return method(*args, **kwargs)
        except (UsageError, SourceError) as error:
            raise error.with_traceback(None) from None

    return called


@cache
def _settle() -> None:
    """Once per process: what is imported by now need not be looked through for garbage. Spark has that done after each call and
    each task, which took longer than a small task, on cores that others would use."""
    gc.freeze()

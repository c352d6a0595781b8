"""Contains user code: whatever handlers, sources and modules of the user raise becomes an error of one known kind."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from actorproc.errors import ActorprocError, HandlerError
from actorproc.runtime.error_text import describe_error, format_error, user_traceback

INTERRUPTIONS = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end a task, a process or a coroutine from outside: no failure of the code that they end."""


@contextmanager
def user_code(what: str, kind: type[ActorprocError] | None = None, *, application_task: bool = False) -> Iterator[None]:
    """Call user code inside. Only an `Exception` or a real interruption comes out, and the task can go on.

    - An ActorprocError, a KeyboardInterrupt and a GeneratorExit come out unchanged.
    - Any other exception, SystemExit included, becomes a `kind` with the message "`what` failed: ...". Its cause is the
      original exception, with the traceback cut to the user's frames.
    - Without `kind`, an `Exception` comes out unchanged, and any other exception becomes a HandlerError.
    - A CancelledError comes out unchanged if this task is to be cancelled. Otherwise user code has cancelled its own
      task or has awaited a cancelled one, and the CancelledError becomes a `kind` or a HandlerError, too.
    - An exception group with a single exception counts as that exception.

    Cancellation requests that user code leaves behind in the task are taken back. Before Python 3.13 asyncio's
    TaskGroup leaves one when one of its tasks has failed, and then anyio's scopes around it do not end their own
    cancellation.

    Args:
        what: subject of the message, such as "on_error".
        application_task: the task may belong to the application, which cancels it directly and not through a scope.
    """
    task = _current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except asyncio.CancelledError as error:
        if task is None or (application_task and task.cancelling() > 0) or _is_scope_cancelled():
            raise
        _restore(task, before)
        reason = "it cancelled its own task, or awaited something that was cancelled"
        raise (kind or HandlerError)(f"{what} was cancelled from within: {reason}") from error
    except BaseException as error:
        _restore(task, before)
        failure = failure_of(error, what, kind)
        if failure is error:
            raise
        raise failure from failure.__cause__
    _restore(task, before)


def failure_of(error: BaseException, what: str = "the handler", kind: type[ActorprocError] | None = None) -> Exception:
    """The error as `user_code` raises it: for loops that cannot afford a context manager per record.

    Raises:
        KeyboardInterrupt, GeneratorExit: the error is a real interruption.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ActorprocError) or (kind is None and isinstance(error, Exception)):
        return error
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)) and not _is_worker_thread():
        raise error
    verb = "raised" if kind is None else "failed:"
    failure = (kind or HandlerError)(f"{what} {verb} {describe_error(error) if kind else format_error(error)}")
    failure.__cause__ = error.with_traceback(user_traceback(error))
    return failure


def _is_worker_thread() -> bool:
    """Whether this thread only runs user code: nothing interrupts it, so an interruption is the user's own."""
    return threading.current_thread() is not threading.main_thread() and _current_task() is None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        return None


def _is_scope_cancelled() -> bool:
    return anyio.current_effective_deadline() == -math.inf


def _restore(task: asyncio.Task[Any] | None, before: int) -> None:
    """Take back cancellation requests, unless a scope around has made its own, which it counts itself."""
    if task is None or task.cancelling() <= before or task is not _current_task() or _is_scope_cancelled():
        return
    while task.cancelling() > before:
        task.uncancel()

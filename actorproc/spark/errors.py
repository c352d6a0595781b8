"""Translates Spark's errors, which are pages long, to ours: a few lines with the cause and the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkException,
    StreamingQueryException,
)

from actorproc import errors
from actorproc.errors import ActorprocError, HandlerDefinitionError, QueryFailed, RecordsLost, UsageError
from actorproc.runtime.error_text import describe_error

_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in .*\n(?:    .*\n)*')
_PACKAGE = str(Path(errors.__file__).parent)
# Not every folder with such a name: users keep code in folders called pyspark, too.
_LIBRARY = re.compile(
    rf"{re.escape(_PACKAGE)}[/\\]|(-packages|\.zip|[/\\]python)[/\\](pyspark|py4j|actorproc)[/\\]|<frozen"
)
_OUR_ERROR = re.compile(r"^actorproc\.errors\.(\w+): (.*)", re.MULTILINE)
_STREAM_PREFIX = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[id = \S+, runId = \S+\] terminated with exception: ")
_MOST_FRAMES = 3  # of the user's traceback
_MOST_CHARACTERS = 2_000  # of a message
_JAVA = re.compile(r"An error occurred while calling .*\n: [\w.$]+: (.*)")
# Refusals for which PySpark has no exception: an unknown format (SQLSTATE 42), or an unusable path.
_REFUSED = re.compile(
    r"SQLSTATE: (42|0A)|\.fs\.(FileAlreadyExists|ParentNotDirectory|UnsupportedFileSystem)Exception[:)] "
)


def translate_error(error: BaseException, context: str) -> ActorprocError:
    """The error as one of ours.

    - An actorproc error raised in one of Spark's processes: UsageError and RecordsLost stay, others become QueryFailed.
    - An exception of the user's function, or Spark's refusal of the query: HandlerDefinitionError.
    - Everything else: QueryFailed. A retry may help.
    """
    if isinstance(error, ActorprocError):
        return error
    if not isinstance(error, (PySparkException, Py4JError)):
        return HandlerDefinitionError(f"{context}: {describe_error(error)}")
    text = error_text(error)
    if found := _OUR_ERROR.findall(text):
        name, message = found[-1]
        kind, message = getattr(errors, name, ActorprocError), message.strip()
        for ours in (UsageError, RecordsLost):
            if issubclass(kind, ours):
                return ours(message)
        return QueryFailed(f"{context}: {message}")
    return (HandlerDefinitionError if _is_refused(error, text) else QueryFailed)(f"{context}: {shorten(text)}")


def _is_refused(error: BaseException, text: str) -> bool:
    """Whether Spark refuses the query before it runs."""
    if isinstance(error, StreamingQueryException):
        return False
    known = isinstance(error, (AnalysisException, ParseException, IllegalArgumentException))
    return known or _REFUSED.search(text.partition("\n\tat ")[0]) is not None


class JavaExited(QueryFailed):
    """Spark's Java process has exited: nothing can be started in this process any more."""


@contextmanager
def translated(context: str, doing: str, then: str) -> Iterator[None]:
    """Raise Spark's errors as ours; see `translate_error`.

    Args:
        doing: the work of Spark's Java process, and `then`: the user's next step; for the message of `JavaExited`.
    """
    try:
        yield
    except (Py4JNetworkError, OSError) as error:
        raise JavaExited(
            f"Spark's Java process, which {doing}, has exited ({error or type(error).__name__}): killed, or out of "
            f"memory (--conf spark.driver.memory=4g gives it more). {then}"
        ) from error
    except (Py4JError, PySparkException) as error:
        raise translate_error(error, context) from error


def error_text(error: BaseException) -> str:
    """The error's text. Some of Spark's errors ask Java for it, which may have exited."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return f"{type(error).__name__} without details: Spark's Java process has exited"


def needs_active_session(error: BaseException | None) -> bool:
    """Whether the error was raised only because no session is open."""
    return isinstance(error, PySparkException) and error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"


def shorten(text: str) -> str:
    """The message without Spark's plans and Java's stack. Of a Python traceback only the user's frames stay."""
    text = _STREAM_PREFIX.sub("", text.strip())
    _, found, trace = text.rpartition(_TRACEBACK)
    if not found:
        java = _JAVA.match(text)
        text = java[1] if java else text
        return text.partition("\n")[0].partition(" SQLSTATE:")[0][:_MOST_CHARACTERS]
    frames = [match[0] for match in _FRAME.finditer(trace) if not _LIBRARY.search(match["file"])]
    raised = _FRAME.sub("", trace).strip().partition("\n")[0]
    return f"{raised}\n{''.join(frames[-_MOST_FRAMES:])}".rstrip()[:_MOST_CHARACTERS]

"""Spark's errors, pages long, told in a few lines: what failed, and where in the user's code."""

from __future__ import annotations

import re
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
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
_HERE = str(Path(errors.__file__).parent)
# Not any folder of such a name: people keep what they write in some, too.
_INSIDE = re.compile(
    rf"{re.escape(_HERE)}[/\\]|(-packages|\.zip|[/\\]python)[/\\](pyspark|py4j|actorproc)[/\\]|<frozen"
)
_OURS = re.compile(r"^actorproc\.errors\.(\w+): (.*)", re.MULTILINE)
_HEAD = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[id = \S+, runId = \S+\] terminated with exception: ")
_FRAMES = 3  # of the user's traceback that are shown
_JAVA = re.compile(r"An error occurred while calling .*\n: [\w.$]+: (.*)")
# What PySpark knows no exception for: a format that is not there (SQLSTATE 42), a place that is a file or of no known store.
_REFUSED = re.compile(
    r"SQLSTATE: (42|0A)|\.fs\.(FileAlreadyExists|ParentNotDirectory|UnsupportedFileSystem)Exception[:)] "
)
_LENGTH = 2_000  # characters of a message


def translate_error(error: BaseException, what: str) -> ActorprocError:
    """The error as one of ours.

    What the user's code raises by itself, or Spark refuses before it runs anything, is a HandlerDefinitionError; what
    actorproc said in one of Spark's processes is said again, as wrong use (UsageError) or as lost for good (RecordsLost)
    where it is that; anything else is QueryFailed: it may go better the next time.
    """
    if isinstance(error, ActorprocError):
        return error
    if not isinstance(error, (PySparkException, Py4JJavaError)):
        return HandlerDefinitionError(f"{what}: {describe_error(error)}")
    text = error_text(error)
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, ActorprocError)
        for ours in (UsageError, RecordsLost):
            if issubclass(kind, ours):
                return ours(message.strip())
        return QueryFailed(f"{what}: {message.strip()}")
    return (HandlerDefinitionError if _is_refused(error, text) else QueryFailed)(f"{what}: {shorten(text)}")


def _is_refused(error: BaseException, text: str) -> bool:
    """Whether Spark says so of what it was asked, and not of a query that ran."""
    if isinstance(error, StreamingQueryException):
        return False
    known = isinstance(error, (AnalysisException, ParseException, IllegalArgumentException))
    return known or _REFUSED.search(text.partition("\n\tat ")[0]) is not None


def java_ended_message(error: BaseException, doing: str, then: str) -> str:
    """That Spark's Java, which was `doing` something, is gone; `then`: what to do."""
    why = f"has ended ({error or type(error).__name__}): killed, or out of memory (--conf spark.driver.memory=4g gives it more)"
    return f"Spark's Java, which {doing}, {why}. {then}"


def error_text(error: BaseException) -> str:
    """What it says; for that some of Spark's errors ask its Java, which may have ended."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return f"{type(error).__name__}, of which Spark's Java does not tell more: it has ended"


def needs_active_session(error: BaseException | None) -> bool:
    """Whether it would not have come with a session open."""
    return isinstance(error, PySparkException) and error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"


def shorten(text: str) -> str:
    """The message without Spark's plans and Java's stack; of a Python traceback the error and the user's own frames."""
    text = _HEAD.sub("", text.strip())
    _, found, trace = text.rpartition(_TRACEBACK)
    if not found:
        java = _JAVA.match(text)
        text = java[1] if java else text
        return text.partition("\n")[0].partition(" SQLSTATE:")[0][:_LENGTH]
    frames = [match[0] for match in _FRAME.finditer(trace) if not _INSIDE.search(match["file"])]
    raised = _FRAME.sub("", trace).strip().partition("\n")[0]
    return f"{raised}\n{''.join(frames[-_FRAMES:])}".rstrip()[:_LENGTH]

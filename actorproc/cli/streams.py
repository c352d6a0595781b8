"""stdout and stderr of a command: makes text safe to write, and handles failures to write."""

from __future__ import annotations

import codecs
import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import typer

# All control characters but tabs and line ends, characters that change the text direction, separators of lines that
# only some programs know, and the invisible byte order mark.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]|\r(?!\n)"
)
_LINE_ENDS = re.compile(r"[\r\n]")


_ESCAPES = "actorproc.escapes"


def _escape(error: UnicodeError) -> tuple[str, int]:
    r"""Replace characters that the encoding of a stream lacks: `\u00e9`, as JSON escapes them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return escaped, error.end


class _Stream:
    """A stream that passes on all but writing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Stderr(_Stream):
    """Drops text that cannot be written: a full disk of the log must not end a host."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _Stdout(_Stream):
    """Remembers that a write failed, so that this failure is told apart from other errors of the system."""

    failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = error
            raise


def prepare() -> None:
    """Wrap both streams before anything is written. A closed stream (`>&-`) is replaced by the null device."""
    codecs.register_error(_ESCAPES, _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)
    sys.stdout = _Stdout(sys.stdout or _null_device())
    sys.stderr = _Stderr(sys.stderr or _null_device())


def _null_device() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def has_color(stream: TextIO) -> bool:
    """Whether the stream is a terminal, and the variable NO_COLOR is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def stdout_failure() -> OSError | None:
    """Why stdout could not be written, if so. From then on it leads to the null device."""
    failure: OSError | None = getattr(sys.stdout, "failure", None)
    if failure is not None:
        _discard_stdout()
    return failure


def conclude(text: str) -> None:
    """Print the last line of a command whose work is done: that it cannot be printed changes no exit code."""
    try:
        typer.echo(escaped(text))
    except OSError:
        _discard_stdout()
        if isinstance(sys.stdout, _Stdout):
            sys.stdout.failure = None


def warn(text: str) -> None:
    """Print one line on stderr. Escaped, as names and errors may come from data."""
    typer.echo(escaped_line(text), err=True)


def _discard_stdout() -> None:
    """Discard buffered text, too, so that the interpreter does not complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def escaped(text: str) -> str:
    r"""`text` with each control character as an escape sequence, so that data cannot move the cursor."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_line(text: str) -> str:
    """`text` on one line: its line ends are escaped, too, so that data cannot look like another line of ours."""
    return _LINE_ENDS.sub(lambda found: repr(found[0])[1:-1], escaped(text))


def json_escaped(document: str) -> str:
    r"""A JSON document with each control character in its texts as `\uXXXX`."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", document)

"""stdout and stderr of a command: either may be closed, full, or a pipe that nobody reads any more."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import typer


class _Stderr:
    """Nothing waits for what is said there: what cannot be written is lost, and ends no host."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Stdout:
    """Remembers that it could not be written, to tell that from what else may fail so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare() -> None:
    """To be called before anything is written. What was closed (`>&-`) leads nowhere from now on."""
    sys.stdout = _Stdout(sys.stdout or _nowhere())
    sys.stderr = _Stderr(sys.stderr or _nowhere())


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def stdout_failure() -> OSError | None:
    """Why stdout did not take what was written, if so. From then on it leads nowhere."""
    failure: OSError | None = getattr(sys.stdout, "failure", None)
    if failure is not None:
        _leave_stdout()
    return failure


def conclude(text: str) -> None:
    """The last word on stdout. What there was to do is done, whether or not it can be said."""
    try:
        typer.echo(text)
    except OSError:
        _leave_stdout()
        if isinstance(sys.stdout, _Stdout):
            sys.stdout.failure = None  # it changes no exit code


def _leave_stdout() -> None:
    """What is still buffered goes nowhere, without a complaint."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

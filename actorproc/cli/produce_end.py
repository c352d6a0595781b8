"""What `actorproc produce` says of bad lines, and where it ends early: what is in the log, and how to go on so that nothing is lost."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import typer

from actorproc.cli.terminal import counted
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.line_producer import BadLine
from actorproc.log.resume_point import Appended

_WAYS = "give --on-bad-line keep (it goes without a key, for the handler to judge) or skip"
_TOLD = 10  # bad lines


class BadLines:
    """Tells which lines of `file` were bad, on stderr: the first of them, once it is known what became of all."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._first: list[BadLine] = []
        self._count = 0

    def add(self, line: BadLine) -> None:
        self._count += 1
        if len(self._first) < _TOLD:
            self._first.append(line)

    def show(self) -> None:
        for line in self._first:
            typer.echo(f"{self._file}: line {line.number:,}: {line.why}", err=True)
        if self._count > _TOLD:
            typer.echo(f"... and {self._count - _TOLD:,} more bad lines", err=True)


def explained(error: ActorprocError, done: Appended, file: str, log: str, more: Sequence[str]) -> ActorprocError:
    """The error, with what is known. `more`: options given, for the command that goes on."""
    if isinstance(error, BadLine):
        why, mend = f"{file}: line {error.number}: {error.why}", f"Mend the line, or {_WAYS}"
        more = [*more, "--on-bad-line", "keep"]  # so that it does not end at this line again
    else:
        why, mend = str(error), "Mend the cause"
    kind = UsageError if isinstance(error, UsageError) else ActorprocError
    if done.records or done.doubtful:
        return kind(f"{why}.\n{_in_the_log(done, file, log)}. {mend}, and {_going_on(done, file, log, more)}")
    if not isinstance(error, BadLine):
        return error if isinstance(error, UsageError) else kind(f"{why}.\nNothing was appended")
    if error.is_json:
        return kind(
            f"{why}.\nNothing was appended. Give the --key that the lines have, or none; or mend the line, or {_WAYS}"
        )
    return kind(
        f"{why}.\nNothing was appended. If no line is JSON, leave out --key: they are appended as they are (in Python, `Producer` "
        f"takes any key). Else mend the line, or {_WAYS}"
    )


def interrupted(done: Appended, file: str, log: str, more: Sequence[str]) -> str:
    """What is known where a signal came."""
    said = f"interrupted: {_in_the_log(done, file, log)}"
    return (
        said if file == "-" and not done.doubtful else f"{said}. To have the rest, {_going_on(done, file, log, more)}"
    )


def _in_the_log(done: Appended, file: str, log: str) -> str:
    """How much is in the log, and up to which line; no more than is known."""
    what = "the input" if file == "-" else file
    there = f"{counted(done.records, 'event')} {'is' if done.records == 1 else 'are'} in {log}"
    if not done.records and not done.doubtful:
        return there
    if not done.doubtful and not done.beyond:
        return f"{there}: all of {what} up to line {done.next_line - 1:,}, and nothing after it"
    doubt = f", and {done.doubtful:,} more may be there or not" if done.doubtful else ""
    after = f"; {done.beyond:,} of those that are there come after it" if done.beyond else ""
    sure = "may be" if done.doubtful else "is"
    return f"{there}{doubt}. The first line of {what} that {sure} missing is {done.next_line:,}{after}"


def _going_on(done: Appended, file: str, log: str, more: Sequence[str]) -> str:
    if not done.records and not done.doubtful:
        return "give the command again"
    twice = ", which appends what is there of the lines after it a second time" if done.doubtful or done.beyond else ""
    if file == "-":
        return f"go on from line {done.next_line:,}{twice}"
    again = shlex.join(["actorproc", "produce", "--log", log, *more, "-"])
    return f"go on from line {done.next_line:,}{twice}: tail -n +{done.next_line} {shlex.quote(file)} | {again}"

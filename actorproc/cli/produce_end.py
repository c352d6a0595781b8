"""The messages of `actorproc produce` about bad lines, and about an early end: what is in the log, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from actorproc.cli.streams import warn
from actorproc.cli.terminal import counted
from actorproc.errors import ActorprocError, UsageError
from actorproc.log.input_formats import BadLine
from actorproc.log.input_producer import Delivered, InputProducer

_WAYS = "give --on-bad-line keep (the line is appended without a key) or skip"


def show_bad_lines(file: str, done: InputProducer) -> None:
    """Print the first bad lines that were kept or skipped to stderr."""
    for line in done.bad_lines:
        warn(f"{file}: line {line.number:,}: {line.why}")
    if more := done.produced.kept + done.produced.skipped - len(done.bad_lines):
        warn(f"... and {more:,} more bad lines")


@dataclass
class Resume:
    """The command that goes on after an early end. `options`: those of the command that ended."""

    file: str
    log: str
    options: Sequence[str]
    header_lines: int = 0

    @property
    def input(self) -> str:
        """The name of the input. Lines of stdin are counted from where this command began to read."""
        return "what this command read from stdin" if self.file == "-" else self.file

    def command(self, line: int) -> str:
        """The command that goes on from `line`; with the header of the file, if it has one."""
        file, first = shlex.quote(self.file), max(line, self.header_lines + 1)
        rest = f"tail -n +{first} {file}"
        if self.header_lines:
            rest = f"{{ head -n {self.header_lines} {file}; {rest}; }}"
        return f"{rest} | {shlex.join(['actorproc', 'produce', '--log', self.log, *self.options, '-'])}"


def explained(error: ActorprocError, done: Delivered, resume: Resume) -> ActorprocError:
    """The error, with what is in the log and how to go on."""
    why, advice = str(error), "Fix the cause"
    if isinstance(error, BadLine):
        why, advice = f"{resume.file}: line {error.number}: {error.why}", f"Fix the line, or {_WAYS}"
        resume.options = [*resume.options, "--on-bad-line", "keep"]  # so that it does not end at this line again
    kind = UsageError if isinstance(error, UsageError) else ActorprocError
    if done.records or done.doubtful:
        return kind(f"{why}.\n{_in_the_log(done, resume)}. {advice}, and {_going_on(done, resume)}")
    if isinstance(error, BadLine):
        return kind(f"{why}.\nNothing was appended. {advice}")
    return error if isinstance(error, UsageError) else kind(f"{why}.\nNothing was appended")


def interrupted(done: Delivered, resume: Resume) -> str:
    """The message after a signal."""
    said = f"interrupted: {_in_the_log(done, resume)}"
    if resume.file == "-" and not done.doubtful:
        return said
    return f"{said}. To append the rest, {_going_on(done, resume)}"


def _in_the_log(done: Delivered, resume: Resume) -> str:
    """Which lines are in the log."""
    events = f"{counted(done.records, 'event')} {'is' if done.records == 1 else 'are'} in {resume.log}"
    if not done.records and not done.doubtful:
        return events
    if not done.doubtful and not done.beyond:
        return f"{events}: all of {resume.input} up to line {done.next_line - 1:,}, and nothing after it"
    doubt = f", and {done.doubtful:,} more may be in the log or not" if done.doubtful else ""
    beyond = f"; {done.beyond:,} of the appended events come after it" if done.beyond else ""
    sure = "may be" if done.doubtful else "is"
    return f"{events}{doubt}. The first line of {resume.input} that {sure} missing is {done.next_line:,}{beyond}"


def _going_on(done: Delivered, resume: Resume) -> str:
    """How to append the rest."""
    if not done.records and not done.doubtful:
        return "run the command again"
    twice = ", which appends later lines that are in the log a second time" if done.doubtful or done.beyond else ""
    if resume.file == "-":
        header = " (after the header)" if resume.header_lines else ""
        return f"go on from line {done.next_line:,} of that input{header}{twice}"
    return f"go on from line {done.next_line:,}{twice}: {resume.command(done.next_line)}"

"""Process 1 of a container obeys SIGTERM from the first import on, as any other process does by itself.

The kernel passes a signal on to process 1 only if it has a handler. A run and the commands set their own handlers, but
only after seconds of imports: until then `docker stop` would do nothing. Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM
_ROOT_OPTIONS = ("--log-level", "--log-format")  # options before the command that have values


def obey_sigterm() -> None:
    """In process 1: end at once on SIGTERM, until somebody sets another handler. Elsewhere: do nothing."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        try:
            signal.signal(signal.SIGTERM, _end)
        except ValueError:  # imported by another thread: the program has begun, and its signals are its own affair
            return


def _end(number: int, _: FrameType | None) -> None:
    if os.getpid() == 1:
        os._exit(_code(sys.argv))
    signal.signal(number, signal.SIG_DFL)  # a forked child, which is not process 1
    os.kill(os.getpid(), number)


def _code(argv: Sequence[str]) -> int:
    """0 for a command that has no end of its own: a signal is its normal end. Otherwise 143, as shells report it."""
    program, *arguments = argv or [""]
    if os.path.basename(program) not in ("actorproc", "__main__.py", "-m"):  # noqa: PTH119  # pathlib takes longer
        return _TERMINATED
    before = ("", *arguments)
    words = zip(before, arguments, strict=False)
    named = next((word for last, word in words if word[:1] != "-" and last not in _ROOT_OPTIONS), None)
    endless = {
        "serve": "--until-end" not in arguments, "produce": "-" in arguments, "dashboard": True, "spark": True,
    }  # fmt: skip
    return 0 if named is not None and endless.get(named) else _TERMINATED

"""Exit codes of the command, and of the worker processes of `serve --workers`."""

from __future__ import annotations

import signal

FAILED = 1

WRONG_USE = 2
"""Arguments or settings are wrong."""

REACHED_END = 64
"""Exit code of a worker that has reached the end. Not 0, with which a handler can end the process at any record."""

NOT_STARTED = 71
"""The system did not start a worker (EX_OSERR of sysexits.h)."""

INTERRUPTED = 128 + signal.SIGINT
"""Ctrl-C, as shells report it."""

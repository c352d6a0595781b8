"""The stack of a thread or of a task that waits, for messages about calls that do not end."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any

_SHOWN = 8  # innermost calls in a log line


def thread_stack(thread: int) -> traceback.StackSummary:
    """Of the thread with this id, the innermost call last; empty if it has ended."""
    frame = sys._current_frames().get(thread)
    return traceback.extract_stack(frame) if frame else traceback.StackSummary()


def task_stack(task: asyncio.Task[Any]) -> traceback.StackSummary:
    """Of a task that waits: each coroutine with the one that it awaits, the innermost last."""
    frames = []
    at: Any = task.get_coro()
    while (frame := getattr(at, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        at = getattr(at, "cr_await", None)
    return traceback.StackSummary.extract(iter(frames))


def shown(stack: traceback.StackSummary) -> str | None:
    """The innermost calls as text; None if there are none."""
    return "".join(traceback.format_list(stack[-_SHOWN:])) or None

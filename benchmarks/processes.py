"""Runs measured code in a process of its own, with a clean heap, its own CPU affinity and its own peak memory."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = os.sysconf("SC_PAGE_SIZE")


def in_own_process(work: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> T:
    """What `work` returns, or raises, in a fresh interpreter, which logs warnings only."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=only_warnings) as pool:
        return pool.submit(work, *args, **keywords).result()


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def only_warnings() -> None:
    """Log what goes wrong, and nothing else."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

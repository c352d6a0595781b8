"""Starts, watches, kills and stops host processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import orjson

from actorproc.demo import DemoFailed

PATIENCE = 30.0
"""Seconds that hosts may take to drain."""

LISTEN = 0.2
"""Seconds between two reads of the hosts' logs."""

LAST_LINES = 20
"""Lines of its log that are shown if a host ends on its own."""


class Fleet:
    """Host processes by name. Use it as an async context manager: it leaves no process behind.

    If a process ends on its own, the block ends with DemoFailed.

    Args:
        commands: command by host name.
        logs: folder for the output of each host.
        alert: called with each error that a host logs: host, text.
        lifeline: environment variable with the descriptor of a pipe, which closes when this process dies.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        *,
        logs: Path,
        alert: Callable[[str, str], None],
        lifeline: str | None = None,
    ) -> None:
        self._commands = commands
        self._lifeline = lifeline
        self._logs = logs
        self._alert = alert
        self._processes: dict[str, anyio.abc.Process] = {}
        self._last: dict[str, deque[str]] = {}
        self._ending: set[str] = set()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._pipe = os.pipe()
        environment = {**os.environ, self._lifeline: str(self._pipe[0])} if self._lifeline else None
        try:
            for host, command in self._commands.items():
                # A file, not a pipe: a host that logs after this process has died must not hang or fail.
                with self._log(host).open("wb") as log:
                    # Own sessions: Ctrl-C reaches only this process, which then stops the hosts in order.
                    self._processes[host] = process = await anyio.open_process(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        pass_fds=self._pipe[:1],
                        start_new_session=True,
                    )
                self._last[host] = deque(maxlen=LAST_LINES)
                self._tasks.start_soon(self._attend, host, process)
        except BaseException:
            await self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        await self._end_all()
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def pids(self) -> dict[str, int]:
        return {host: process.pid for host, process in self._processes.items()}

    def kill(self, host: str) -> None:
        """kill -9: the host cannot commit or hand over."""
        self._ending.add(host)
        self._processes[host].kill()

    async def stop(self) -> None:
        """Send SIGTERM to the running hosts, and wait until they have drained.

        Raises:
            DemoFailed: a host did not end, or not with exit code 0.
        """
        running = {host: process for host, process in self._processes.items() if host not in self._ending}
        self._ending |= running.keys()
        for process in running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for host, process in running.items():
            with anyio.move_on_after(PATIENCE):
                await process.wait()
            if process.returncode != 0:
                how = "did not stop" if process.returncode is None else f"stopped with exit code {process.returncode}"
                raise DemoFailed(f"{host} {how} when asked to drain; {self._tail(host)}")

    async def _attend(self, host: str, process: anyio.abc.Process) -> None:
        """Follow the log of the process until it ends, and pass its errors on."""
        rest = b""
        with self._log(host).open("rb") as log:
            while process.returncode is None:
                with anyio.move_on_after(LISTEN):
                    await process.wait()
                *lines, rest = (rest + log.read()).split(b"\n")
                for line in lines:
                    self._take(host, line.decode(errors="replace"))
        if rest:
            self._take(host, rest.decode(errors="replace"))
        if host not in self._ending:
            raise DemoFailed(f"{host} ended on its own with exit code {process.returncode}; {self._tail(host)}")

    def _log(self, host: str) -> Path:
        return self._logs / f"{host}.log"

    def _take(self, host: str, line: str) -> None:
        self._last[host].append(line)
        if host not in self._ending and (error := _error_in(line)):
            self._alert(host, error)

    def _tail(self, host: str) -> str:
        lines = "".join(f"\n  {line}" for line in self._last[host])
        return f"the end of {self._log(host)}:{lines or ' (empty)'}"

    async def _end_all(self) -> None:
        """SIGTERM, then SIGKILL after a few seconds."""
        self._ending |= self._processes.keys()
        with anyio.CancelScope(shield=True):
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    process.terminate()
            with anyio.move_on_after(5):
                for process in self._processes.values():
                    await process.wait()
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for end in self._pipe:
            os.close(end)


def _error_in(line: str) -> str | None:
    """The text of a log line with an error. A line that is not JSON, such as a traceback, counts as an error."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line.strip() or None
    if not isinstance(event, dict) or event.get("level") not in ("error", "critical"):
        return None
    rest = ", ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "level", "timestamp", "exception"))
    return f"{event.get('event')}: {rest}"

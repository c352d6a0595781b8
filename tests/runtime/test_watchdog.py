"""The watchdog distinguishes a blocked event loop from a process that gets no CPU."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
import structlog

from actorproc.admin.verdict import judge_blocked
from actorproc.group.reports import HostReport, PartitionReport
from actorproc.host.reporting import blocked_report
from actorproc.runtime import watchdog
from actorproc.runtime.cpu import available_cores, cpu_wait
from actorproc.runtime.watchdog import Blockage, loop_watchdog


@pytest.mark.parametrize(("share", "event"), [(0.9, "loop.starved"), (0.1, "loop.blocked")])
async def test_a_loop_that_waits_for_the_cpu_is_starved_and_not_blocked(
    monkeypatch: pytest.MonkeyPatch, share: float, event: str
) -> None:
    told: list[Blockage] = []
    monkeypatch.setattr(watchdog, "cpu_wait", lambda thread: time.monotonic() * share)
    with structlog.testing.capture_logs() as logs, loop_watchdog(0.1, structlog.get_logger(), told.append):
        time.sleep(0.3)
    assert [log["event"] for log in logs] == [event]
    for thread in threading.enumerate():
        if thread.name == "actorproc-blocked":
            thread.join()
    assert [found.starved for found in told] == [event == "loop.starved"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread waits for a CPU")
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * available_cores())]
    try:
        before, thread = cpu_wait(threading.get_native_id()), threading.get_native_id()
        end = time.monotonic() + 30
        while cpu_wait(thread) - before < 0.1 and time.monotonic() < end:
            pass
        assert cpu_wait(thread) - before >= 0.1
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert cpu_wait(2**31 - 1) == 0.0, "a thread that does not exist"


def test_a_starved_host_blames_no_partition() -> None:
    report = HostReport(progress={"1": PartitionReport(1, state="running", activity="handle")})
    starved = blocked_report(report, Blockage("app.py:7, in process", 9.0, starved=True), 5.0)
    found = judge_blocked("1", "h", starved)
    assert (found.kind, found.fault) == ("silent", None)
    assert "too little CPU" in found.reason
    blocked = judge_blocked("1", "h", blocked_report(report, Blockage("app.py:7, in process", 9.0, starved=False), 5.0))
    assert (blocked.kind, blocked.fault) == ("stuck", "user")
    assert "app.py:7" in blocked.reason

"""What Spark is asked on the way out, and may never answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait


def ends_within(seconds: float, work: Callable[[], object]) -> bool:
    """Do blocking `work`; whether it ended in time. If not, it goes on in a thread that does not keep this process alive, as
    those of the event loop would.

    Raises:
        Exception: what `work` raised in time.
    """
    outcome: Future[object] = Future()

    def do() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 (who asked gets it)
            outcome.set_exception(error)

    threading.Thread(target=do, name="actorproc-bounded", daemon=True).start()
    if not wait([outcome], seconds).done:
        return False
    outcome.result()
    return True

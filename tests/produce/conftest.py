"""The stores on which the log is tested."""

from __future__ import annotations

from tests.log.conftest import store as store

"""Simulations write no log."""

from __future__ import annotations

from tests.quiet import silence as silence

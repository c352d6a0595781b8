"""Simulations log nothing."""

from __future__ import annotations

from tests.quiet import silence as silence

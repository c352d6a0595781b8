"""Tests of the built-in log."""

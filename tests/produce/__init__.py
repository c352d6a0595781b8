"""Tests of appending to the built-in log."""

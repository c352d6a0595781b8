"""Tests of the SQLite connector."""

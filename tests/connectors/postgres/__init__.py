"""Tests of the PostgreSQL connector, against a real server."""

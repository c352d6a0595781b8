"""Tests of the Redis connector, against real servers."""

"""Tests of the HTTP connector, against servers of our own on loopback."""

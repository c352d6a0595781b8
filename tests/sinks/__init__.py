"""Tests of deliveries to sinks."""

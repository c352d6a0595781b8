"""Spark over committed output: `make bench-spark` runs all of this package."""

"""Appends to the built-in log: the `Producer`, transactions, growth, and lines or CSV as records."""

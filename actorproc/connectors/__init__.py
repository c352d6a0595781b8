"""Connectors: a folder for each system that records come from or go to. The core does not import them."""

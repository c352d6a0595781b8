"""Configuration: the settings, where they are read from, and the messages about wrong ones."""

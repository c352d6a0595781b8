"""Settings: their names, defaults and limits, and the places they are read from."""

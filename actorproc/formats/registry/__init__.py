"""The schema registry, and values that begin with the id of their schema."""

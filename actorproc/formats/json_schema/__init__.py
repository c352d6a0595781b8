"""JSON that a JSON Schema checks."""

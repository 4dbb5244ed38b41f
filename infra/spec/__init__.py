"""The platform spec: its schema, loading with line numbers, field documentation and JSON Schema."""

"""The run folder: formats, reading, writing and storage."""

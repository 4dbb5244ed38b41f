"""The run folder: who writes it, who reads it, and where it is stored."""

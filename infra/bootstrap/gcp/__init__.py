"""The bootstrap of a Google Cloud project."""

"""Commands about platforms, one file per command."""

"""Commands of the rehearsal, one file per command."""

"""The rehearsal's commands, one file per command."""

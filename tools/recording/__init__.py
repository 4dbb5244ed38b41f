"""Records a command in a terminal and draws the recording: `python -m tools.recording` (docs/demo.md)."""

"""`trainfleet report`: a run as one HTML file that needs no network, and several runs beside each other.
Never imports torch.

Used by the command line and by every launcher at its end. `story` reads a run, `spent` and `cost` say where
time and money
went, `page` and `compare` write. Easy to get wrong: a run may be going on, killed or younger than its first
row.
"""

from __future__ import annotations

from trainfleet.training.report.compare import comparison, differences, write_comparison
from trainfleet.training.report.page import render, write_report
from trainfleet.training.report.run_summary import Story, read_story

__all__ = ["Story", "comparison", "differences", "read_story", "render", "write_comparison", "write_report"]

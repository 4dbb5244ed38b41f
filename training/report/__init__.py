"""`trainfleet report`: one run, or a comparison of several, as a single HTML file. Never imports torch.

`run_summary` reads a run, `time_breakdown` and `cost` compute where time and money went, `run_charts` selects
the charts, `page` and `compare` write the HTML.
"""

from __future__ import annotations

from trainfleet.training.report.compare import comparison, differences, write_comparison
from trainfleet.training.report.page import render, write_report
from trainfleet.training.report.run_summary import RunSummary, read_run_summary

__all__ = [
    "RunSummary",
    "comparison",
    "differences",
    "read_run_summary",
    "render",
    "write_comparison",
    "write_report",
]

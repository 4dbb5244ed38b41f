"""The table of recovery times: a line per fault, with minimum, median and maximum over both strategies."""

from __future__ import annotations

import pytest

from tools.fault_table import recovery, table


def row(fault: str, seconds: float, restarted: float = 1.0, load: float = 2.0) -> dict[str, object]:
    new = seconds + 5
    return {"fault": fault, "next_step": seconds, "new_step": new, "restarted": restarted, "load": load}


def test_each_fault_has_a_line_in_the_order_of_the_faults() -> None:
    rows = [row("ddp: node stopped", 50.2), row("ddp: operator killed", 0.4, 0.0)]
    rows += [row("ddp: node stopped", 41.0, load=7.4), row("ddp: node stopped", 59.6, 0.0)]
    rows += [row("fsdp: node stopped", 44.0)]
    assert table(rows).splitlines()[2:] == [
        "| node stopped | 3 ddp, 1 fsdp | 41 | 47 | 60 | 60 | 52 | 3 of 4 | 2 to 7 |",
        "| operator killed | 1 ddp | 0.4 | 0.4 | 0.4 |  | 5.4 | 0 of 1 | 2 to 2 |",
    ]


def test_a_recovery_is_from_the_least_to_the_most_seconds_until_a_new_step() -> None:
    rows = [row("ddp: node stopped", 50.2), row("fsdp: node stopped", 41.0), row("ddp: node drained", 9.0)]
    assert recovery("node stopped", rows) == "46 to 55 s"
    with pytest.raises(KeyError, match="nothing such"):
        recovery("nothing such", rows)

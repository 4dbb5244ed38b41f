"""The table of recovery times: a line per fault and strategy, with minimum, median and maximum."""

from __future__ import annotations

from tools.fault_table import table


def row(fault: str, seconds: float, restarted: float = 1.0, load: float = 2.0) -> dict[str, object]:
    return {"fault": fault, "next_step": seconds, "restarted": restarted, "load": load}


def test_each_fault_and_strategy_has_a_line_in_the_order_of_the_faults() -> None:
    rows = [row("ddp: node stopped", 50.2), row("ddp: operator killed", 0.4, 0.0)]
    rows += [row("ddp: node stopped", 41.0, load=7.4), row("ddp: node stopped", 59.6, 0.0)]
    rows += [row("fsdp: node stopped", 44.0)]
    assert table(rows).splitlines()[2:] == [
        "| node stopped | ddp | 3 | 41 | 50 | 60 | 2 of 3 | 2 to 7 | 60 |",
        "| node stopped | fsdp | 1 | 44 | 44 | 44 | 1 of 1 | 2 to 2 | 60 |",
        "| operator killed | ddp | 1 | 0.4 | 0.4 | 0.4 | 0 of 1 | 2 to 2 |  |",
    ]

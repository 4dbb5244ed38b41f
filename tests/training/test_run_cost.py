"""What runs have cost: queueing and idle time apart, by group and by month."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainfleet.training.cli.run_places import list_urls
from trainfleet.training.cli.runs_cost import cost_document, lines
from trainfleet.training.launch.clusters.summary import Member, overall, write_report
from trainfleet.training.report import comparison
from trainfleet.training.report.run_summary import read_run_summary
from trainfleet.training.runs.listing import list_storage
from trainfleet.training.runs.machine_time import machine_times, timeline

FIRST = {"held_seconds": 3600.0, "trained_seconds": 3000.0, "usd_per_hour": 4.0}
AT = {"at": "2026-11-30T20:00:00+00:00", "on": "kuberay", "owner": "ada", "starts_before": 0}
FOLLOWED = AT | {"seconds": 11000.0, "admitted_seconds": 7200.0, "first_step_seconds": 7500.0}


def test_a_queue_costs_nothing_and_idle_machines_do() -> None:
    (found,) = machine_times({"launches": [FOLLOWED], "starts": [FIRST]})
    assert (found.queued_s, found.held_s, found.idle_s) == (7200, 3800, 800)
    assert found.usd == pytest.approx(3800 / 3600 * 4)
    assert found.idle_usd == pytest.approx(800 / 3600 * 4)


@pytest.mark.parametrize(
    ("record", "held", "idle", "usd"),
    [
        # The launcher detached or was killed: the ranks' own count.
        ({"launches": [AT], "starts": [FIRST]}, 3600, 600, 4.0),
        # It was followed without anybody seeing the admission.
        ({"launches": [AT | {"seconds": 11000.0}], "starts": [FIRST]}, 3600, 600, 4.0),
        ({"launches": [AT], "starts": [FIRST, FIRST]}, 7200, 1200, 8.0),
        # A run of an older version.
        ({"launches": [AT], "starts": [{"held_seconds": 3600.0}]}, 3600, None, None),
        ({"launches": [AT | {"seconds": 60.0, "admitted_seconds": 60.0}]}, 0, 0, None),
        ({"starts": [FIRST | {"at": "2026-11-01T00:00:00+00:00"}]}, 3600, 600, 4.0),
    ],
)
def test_held_time_is_known_without_a_launcher(
    record: dict[str, Any], held: float, idle: float | None, usd: float | None
) -> None:
    (found,) = machine_times(record)
    assert (found.held_s, found.idle_s, found.usd) == (held, idle, usd)


def test_each_start_counts_for_its_launch_and_attach_for_none() -> None:
    launches = [AT, AT | {"attached": True, "starts_before": 1}, AT | {"owner": "bob", "starts_before": 1}]
    found = machine_times({"launches": launches, "starts": [FIRST, FIRST, FIRST]})
    assert [(each.launch["owner"], each.held_s) for each in found] == [("ada", 3600), ("bob", 7200)]
    # The last launch is known from the store only.
    again = machine_times({"launches": launches[:1], "starts": [FIRST, FIRST]}, launches[2] | {"at": "later"})
    assert [(each.launch["owner"], each.held_s) for each in again] == [("ada", 3600), ("bob", 3600)]


def test_starts_of_launches_that_are_not_known_count_too() -> None:
    """The record of a run that was detached twice has only the last launch."""
    last = AT | {"at": "2026-12-05T00:00:00+00:00", "starts_before": 2}
    began = "2026-12-01T00:00:00+00:00"
    starts = [FIRST | {"at": began}, FIRST, FIRST]
    records: list[dict[str, Any]] = [{"starts": starts, "launches": [last]}, {"starts": starts}]
    for record in records:
        unknown, known = machine_times(record, last)
        assert (unknown.held_s, unknown.usd, unknown.launch) == (7200, 8.0, {"at": began})
        assert (known.held_s, known.usd, known.launch) == (3600, 4.0, last)
    assert len(machine_times({"launches": [last]})) == 1


def test_a_run_of_several_places_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/a", "runs/b", "more/a"):
        Path(place).mkdir(parents=True)
        record = {"name": place[-1], "status": "finished", "launches": [AT], "starts": [FIRST]}
        Path(place, "run.json").write_text(json.dumps(record))
    places = ["runs", "runs/", "./runs", f"file://{tmp_path}/runs", "more"]
    found = list_urls(places)
    assert sorted(each.home for each in found) == ["more/a", "runs/a", "runs/b"]
    assert cost_document(found, "run", None)["total"]["usd"] == 12.0


def test_machine_time_is_divided_between_months() -> None:
    (found,) = machine_times({"launches": [FOLLOWED | {"seconds": 7200.0 + 8 * 3600}], "starts": [FIRST]})
    parts = found.by_month()
    assert {month: (part.held_s, part.queued_s) for month, part in parts.items()} == {
        "2026-11": (2 * 3600, 7200),
        "2026-12": (6 * 3600, 0),
    }
    assert sum(part.usd or 0 for part in parts.values()) == pytest.approx(32.0)


def test_a_run_whose_launcher_detached_counts_from_its_start_and_not_from_its_launch() -> None:
    """It may have waited in a queue into the next month, which nobody has seen."""
    (found,) = machine_times(
        {"launches": [AT], "starts": [FIRST | {"at": "2026-12-01T02:00:00+00:00"}]},
    )
    assert {month: part.held_s for month, part in found.by_month().items()} == {"2026-12": 3600.0}


def test_the_report_shows_when_a_launch_was_admitted(tmp_path: Path) -> None:
    record = {"name": "night", "status": "finished", "launches": [FOLLOWED], "starts": [FIRST]}
    assert timeline(record) == [
        {
            "launched": "2026-11-30T20:00:00+00:00",
            "admitted": "2026-11-30T22:00:00+00:00",
            "first_step": "2026-11-30T22:05:00+00:00",
            "ended": "2026-11-30T23:03:20+00:00",
        }
    ]
    (tmp_path / "run.json").write_text(json.dumps(record))
    figures = read_run_summary(tmp_path).figures()
    assert figures["machine_time"]["queued_seconds"] == 7200
    assert figures["machine_time"]["idle_usd"] == pytest.approx(0.8889)
    assert figures["time"]["waiting in a queue"] == 7200
    assert figures["time"]["starting"] == 300


@pytest.mark.parametrize(
    ("by", "month", "rows"),
    [
        ("run", None, {"a": 4.0, "b": 8.0}),
        ("owner", None, {"ada": 4.0, "bob": 8.0}),
        ("launcher", None, {"kuberay": 4.0, "sky": 8.0}),
        ("platform", None, {"aws-prod": 4.0, "east": 8.0}),
        ("month", None, {"2026-11": 4.0, "2026-12": 8.0}),
        ("owner", "2026-12", {"bob": 8.0}),
        ("owner", "2025-01", {}),
    ],
)
def test_costs_are_added_up_by_group(
    tmp_path: Path, by: str, month: str | None, rows: dict[str, float]
) -> None:
    launches = {
        "a": AT | {"platform": {"name": "aws-prod"}},
        "b": AT
        | {"at": "2026-12-01T00:00:00+00:00", "on": "sky", "owner": "bob", "place": {"context": "east"}},
    }
    for name, launch in launches.items():
        (tmp_path / name).mkdir()
        starts = [FIRST] if name == "a" else [FIRST, FIRST]
        record = {"name": name, "status": "finished", "launches": [launch], "starts": starts}
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    document = cost_document(list_storage(str(tmp_path)), by, month)
    assert {row[by]: row["usd"] for row in document["rows"]} == rows
    assert document["total"]["usd"] == (sum(rows.values()) or None)
    assert document["total"]["runs"] == len(rows)
    text = "\n".join(lines(document))
    assert "in all" in text


@pytest.mark.parametrize(
    ("prices", "usd", "shown"),
    [
        ((4.0, 5.0), 9.0, ["$4.00", "$5.00"]),
        # The machines of one are not known: the cheapest pool that could run it, for the whole launch.
        ((4.0, None), 4.0 + 3.0, ["$4.00", "$3.00"]),
    ],
)
def test_runs_together_cost_what_their_machines_cost(
    tmp_path: Path, prices: tuple[float | None, ...], usd: float, shown: list[str]
) -> None:
    pools = [{"name": "l4", "per_node": 1, "usd_per_hour": 1.0}, {"name": "h100", "usd_per_hour": 50.0}]
    launch = FOLLOWED | {"platform": {"name": "aws", "cloud": "aws", "pools": pools}, "workers": 1}
    members = []
    for number, price in enumerate(prices):
        run_dir = tmp_path / f"run-{number}"
        run_dir.mkdir()
        record = {"launches": [launch | {"seconds": 10800.0}], "starts": [FIRST | {"usd_per_hour": price}]}
        (run_dir / "run.json").write_text(json.dumps({"name": run_dir.name, "status": "finished", **record}))
        members.append(Member(run_dir.name, "kuberay", run_dir, "finished"))
    summaries = write_report(members, tmp_path / "all.html")
    assert overall(members, summaries)["usd"] == usd
    assert re.findall(r'class="figure(?: best)?">([$][^<]+)<', comparison(summaries)) == shown


def test_nothing_is_added_up_if_one_run_cannot_be_read(tmp_path: Path) -> None:
    run_dir = tmp_path / "a"
    run_dir.mkdir()
    record = {"name": "a", "status": "finished", "launches": [], "starts": [FIRST | {"usd_per_hour": 4.0}]}
    (run_dir / "run.json").write_text(json.dumps(record))
    row = {"kind": "train", "step": 1, "loss": 1.0, "tokens_per_second": 10.0, "time": 0.0}
    (run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    members = [Member("a", "kuberay", run_dir, "finished"), Member("b", "kuberay", tmp_path / "b", "failed")]
    summaries = write_report(members, tmp_path / "all.html")
    alone = overall(members[:1], summaries)
    assert (alone["tokens_per_second"], alone["usd"]) == (10.0, 4.0)
    both = overall(members, summaries)
    assert (both["clusters"], both["tokens_per_second"], both["usd"]) == (2, None, None)

"""The report shows the content of the run folder, for runs that finished, were killed, or left an incomplete
row.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.pages import Balanced, figures, written
from trainfleet.errors import InputError
from trainfleet.training.report import read_run_summary, write_report
from trainfleet.training.report.charts import Chart, Series, draw, library, smooth
from trainfleet.training.report.time_breakdown import goodput
from trainfleet.training.runtime.progress import number


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of 40 steps, killed at step 23 and resumed from step 20, with names that need HTML escapes."""
    folder = tmp_path / "lm-<b>"
    (folder / "checkpoints" / "step-00000040").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000040" / "COMMITTED").write_text(
        json.dumps({"note": {"step": 40, "metrics": {"validation/loss": 2.2}}, "files": {}})
    )
    (folder / "checkpoints" / "step-00000030").mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (folder / "run.json").write_text(json.dumps(run_record()))
    (folder / "recipe.yaml").write_text("name: lm-tiny\n")
    return folder


def rows() -> list[dict[str, Any]]:
    """The rows of 40 steps, with a validation at every tenth."""
    found: list[dict[str, Any]] = []
    for step in range(1, 41):
        found.append(
            {
                "kind": "train",
                "step": step,
                "steps": 40,
                "loss": 3 - step / 40,
                "nats_per_byte": 3 - step / 40,
                "lr": 1e-3,
                "grad_norm": 1.0,
                "tokens_per_second": 1000.0 + step,
                "data_wait": 0.25,
                "step_seconds": 0.5,
                "checkpoint_seconds": 0.1,
                "validation_seconds": 0.05,
            }
        )
        if step % 10 == 0:
            loss = 3 - step / 50
            found.append(
                {
                    "kind": "validation",
                    "step": step,
                    "validation/loss": loss,
                    "validation/nats_per_byte": loss,
                }
            )
    return [*found, {"kind": "test", "step": 40, "test/loss": 2.25, "test/nats_per_byte": 2.25}]


def run_record() -> dict[str, Any]:
    """What run.json holds after a killed launch and one that finished."""
    launch = {"on": "torchrun", "recipe": "lm-tiny", "workers": 2, "machine": "a small machine"}
    return {
        "name": "lm-<b>",
        "status": "finished",
        "steps": 40,
        "world_size": 2,
        "parameters": 20832,
        "baseline": {"bigram_nats_per_byte": 2.5},
        "launches": [
            {"at": "2026-01-01T10:00:00+00:00", "status": "killed", **launch},
            {
                "at": "2026-01-01T10:01:00+00:00",
                "status": "finished",
                "seconds": 60.0,
                "first_step_seconds": 9.5,
                **launch,
            },
        ],
        "starts": [
            {"at": "2026-01-01T10:00:05+00:00", "from_step": 0},
            {"at": "2026-01-01T10:01:05+00:00", "from_step": 20, "torch": "2.15.0"},
        ],
    }


def test_the_page_is_valid_and_fetches_nothing(run_dir: Path) -> None:
    page = written(run_dir)
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.fetched == []
    assert page.count(library()) == 1
    own = page.replace(library(), "")
    assert not re.search(r"url\(|@import|https?:", own)
    assert (
        """http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style"""
        in own
    )
    assert len(own) < 100_000


def test_the_curves_are_those_of_the_rows(run_dir: Path) -> None:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    validation = [row for row in rows if row["kind"] == "validation"]
    (loss, layout), (rate, _), (speed, _), (norm, _), _ = figures(written(run_dir))
    for line, kept, key in (
        (loss["train"], train, "nats_per_byte"),
        (loss["validation"], validation, "validation/nats_per_byte"),
        (rate["learning rate"], train, "lr"),
        (speed["tokens per second"], train, "tokens_per_second"),
        (norm["gradient norm"], train, "grad_norm"),
    ):
        assert line["x"] == [row["step"] for row in kept]
        assert line["y"] == [row[key] for row in kept]
    assert (loss["test"]["x"], loss["test"]["y"], loss["test"]["mode"]) == ([40], [2.25], "markers")
    assert layout["xaxis"]["title"]["text"] == "step"
    assert layout["yaxis"]["title"]["text"] == "nats per byte"


def test_the_bigram_model_and_the_resume_are_marked(run_dir: Path) -> None:
    (_, loss), *others, _ = figures(written(run_dir))
    level, resume = loss["shapes"]
    assert (level["y0"], level["y1"], level["name"], level["showlegend"]) == (
        2.5,
        2.5,
        "bigram model: 2.5",
        True,
    )
    for layout in (loss, *(layout for _, layout in others)):
        assert (layout["shapes"][-1]["x0"], layout["shapes"][-1]["x1"], layout["shapes"][-1]["name"]) == (
            20,
            20,
            "resumed",
        )
        assert [note["hovertext"] for note in layout["annotations"]] == ["resumed from step 20"]
    assert resume["showlegend"] is True


def test_a_long_run_is_smoothed_and_keeps_the_measured_points(run_dir: Path) -> None:
    rows = [{"kind": "train", "step": step, "loss": float(step % 2)} for step in range(1, 201)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = figures(written(run_dir))[0][0]
    measured, smoothed = lines["train, as measured"], lines["train, smoothed"]
    assert measured["y"] == [row["loss"] for row in rows]
    assert measured["opacity"] < smoothed["opacity"]
    assert max(smoothed["y"][50:]) - min(smoothed["y"][50:]) < 0.2


def test_names_are_escaped(run_dir: Path) -> None:
    page = written(run_dir)
    assert "lm-&lt;b&gt;" in page
    assert "<b>lm" not in page
    assert "lm-<b>" not in page


def test_the_summary_is_that_of_the_rows(run_dir: Path) -> None:
    figures_of_run = read_run_summary(run_dir).figures()
    assert figures_of_run["status"] == "finished"
    assert (figures_of_run["step"], figures_of_run["steps"], figures_of_run["resumes"]) == (40, 40, 1)
    assert figures_of_run["best_validation"] == pytest.approx(2.2)
    assert figures_of_run["best_step"] == 40
    assert (figures_of_run["figure"], figures_of_run["mode"]) == ("nats_per_byte", "min")
    assert figures_of_run["baseline"] == {"name": "bigram", "value": 2.5}
    assert figures_of_run["ahead_of_baseline"] == pytest.approx(0.3)
    assert figures_of_run["test"] == 2.25
    assert figures_of_run["tokens_per_second"] == 1021.0
    assert figures_of_run["unreadable_rows"] == 0


def test_the_time_breakdown_adds_up_to_the_launches(run_dir: Path) -> None:
    parts = dict(read_run_summary(run_dir).time_shares())
    assert parts["computing"] == pytest.approx(15.0)
    assert parts["waiting for data"] == pytest.approx(5.0)
    assert parts["saving checkpoints"] == pytest.approx(4.0)
    assert parts["validating"] == pytest.approx(2.0)
    assert parts["starting"] == pytest.approx(9.5)
    assert parts["ending and lost work"] == pytest.approx(24.5)
    assert sum(parts.values()) == pytest.approx(60.0)
    page = written(run_dir)
    assert [float(width) for width in re.findall(r"width: ([\d.]+)%\" title", page)] == pytest.approx(
        [value / 60 * 100 for value in parts.values()]
    )
    assert re.search(r"computing <b>25\.0%</b> <span class=\"muted\">15\.0 s", page)
    assert read_run_summary(run_dir).figures()["goodput"] == pytest.approx(0.25)
    assert re.search(r"<span>goodput</span><b>25\.0%</b>", page)


def test_goodput_is_the_share_of_the_reserved_time_and_a_queue_reserves_nothing() -> None:
    parts = {"computing": 50.0, "communicating": 10.0, "saving checkpoints": 5.0, "starting": 15.0}
    assert goodput(parts) == 0.75
    assert goodput({**parts, "waiting in a queue": 7200.0}) == 0.75
    assert goodput({"waiting in a queue": 7200.0}) is None


def test_kill_and_resume_are_listed_in_order(run_dir: Path) -> None:
    page = written(run_dir)
    killed, resumed, finished = (
        page.index("2 workers: killed"),
        page.index("training resumed from step 20"),
        page.index("2 workers: finished"),
    )
    assert killed < finished < resumed


def test_only_checkpoints_with_their_marker_are_listed(run_dir: Path) -> None:
    page = written(run_dir)
    assert "step-00000040" in page
    assert "step-00000030" not in page


def test_an_incomplete_row_is_left_out_and_reported(run_dir: Path) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 41, "lo')
    page = written(run_dir)
    assert "1 line of metrics.jsonl could not be read" in page
    assert figures(page)[0][0]["train"]["x"][-1] == 40
    assert read_run_summary(run_dir).last_step == 40


@pytest.mark.parametrize(
    "missing", ["run.json", "recipe.yaml", "metrics.jsonl", "checkpoints/step-00000040/COMMITTED"]
)
def test_a_run_without_one_of_its_files_has_a_report(run_dir: Path, missing: str) -> None:
    (run_dir / missing).unlink()
    assert "</html>" in written(run_dir)


def test_a_run_killed_before_its_first_row_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps({"name": "young", "status": "running", "launches": [], "starts": []})
    )
    page = written(tmp_path)
    assert page.count("No measurements yet.") == 2
    assert "Plotly" not in page
    assert 'class="status killed"' in page


@pytest.mark.parametrize(("make", "message"), [(False, "no such run"), (True, "no run found")])
def test_a_folder_that_is_not_a_run_is_rejected(tmp_path: Path, make: bool, message: str) -> None:
    folder = tmp_path / "nothing"
    if make:
        folder.mkdir()
    with pytest.raises(InputError, match=message):
        write_report(folder, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_failed_report_keeps_the_old_one(run_dir: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("old")
    with pytest.raises(InputError, match="cannot write a file"):
        write_report(run_dir, blocked / "report.html")
    assert blocked.read_text() == "old"


def test_the_command_prints_the_path_and_the_summary(
    trainfleet: Callable[..., subprocess.CompletedProcess[str]], run_dir: Path, tmp_path: Path
) -> None:
    done = trainfleet("report", str(run_dir), "--output", str(tmp_path / "out.html"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ahead_of_baseline"] == pytest.approx(0.3)
    assert "</html>" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1.23M"),
        (34567, "34.6k"),
        (2.35149, "2.351"),
        (3e-4, "3e-4"),
        (2.5e-5, "2.5e-5"),
        (-0.31, "-0.31"),
    ],
)
def test_numbers_are_formatted_briefly(value: float, text: str) -> None:
    assert number(value) == text


def test_smoothing_does_not_change_a_constant() -> None:
    assert [y for _, y in smooth([(x, 2.0) for x in range(5)], 0.9)] == pytest.approx([2.0] * 5)


def test_points_with_nan_leave_a_gap() -> None:
    ((lines, _),) = figures(
        draw(Chart("Loss", [Series("train", [(1, 2.0), (2, float("nan")), (3, 1.0), (4, float("inf"))])]))
    )
    assert lines["train"]["y"] == [2.0, None, 1.0, None]
    assert draw(Chart("Loss", [Series("train", [(1, float("nan"))])])) == ""


def test_progress_does_not_wait_for_plotly() -> None:
    code = "import sys, trainfleet.training.runtime.progress, trainfleet.training.report; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

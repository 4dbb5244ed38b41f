"""Reports of different runs: other metrics, decisions, prices, invalid rows; and several runs on one page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.pages import Balanced, figures, written
from trainfleet.training.report import comparison, differences, read_run_summary, write_comparison
from trainfleet.training.report.time_breakdown import stacked

Make = Callable[..., Path]
POOLS = [
    {
        "name": "big",
        "accelerator": "H100",
        "per_node": 8,
        "instance_type": "p5.48xlarge",
        "spot": False,
        "usd_per_hour": 60.0,
    },
    {
        "name": "small",
        "accelerator": "L4",
        "per_node": 1,
        "instance_type": "g6.xlarge",
        "spot": True,
        "usd_per_hour": 0.5,
    },
    {
        "name": "own",
        "accelerator": "L4",
        "per_node": 1,
        "instance_type": "",
        "spot": False,
        "usd_per_hour": None,
    },
]


def row(step: int, **figures: Any) -> dict[str, Any]:
    """A training row: ten steps of half a second."""
    timed = {"step_seconds": 0.5, "data_wait": 0.1, "checkpoint_seconds": 0.2, "validation_seconds": 0.3}
    return (
        {
            "kind": "train",
            "step": step,
            "loss": 1 / step,
            "lr": 1e-3,
            "global_batch": 8,
            "samples_per_second": 16.0,
        }
        | timed
        | figures
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A run folder with these rows, this recipe and these fields of run.json."""

    def call(rows: list[Mapping[str, Any]], name: str = "try", recipe: str = "", **run: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        (folder / "run.json").write_text(json.dumps({"name": folder.name, "status": "finished", **run}))
        (folder / "recipe.yaml").write_text(recipe)
        return folder

    return call


PICTURES = "checkpoint: {metric: validation/accuracy, mode: max}\n"


@pytest.fixture
def pictures(make: Make) -> Path:
    """An image classifier that is compared by its accuracy, and two baselines."""
    rows: list[Mapping[str, Any]] = [row(10, accuracy=0.5), row(20, accuracy=0.9)]
    for step, accuracy in ((10, 0.6), (15, 0.95), (20, 0.9)):
        rows.append(
            {
                "kind": "validation",
                "step": step,
                "validation/loss": 0.3,
                "validation/accuracy": accuracy,
                "validation/f1": accuracy - 0.1,
            }
        )
    rows.append({"kind": "test", "step": 20, "test/loss": 0.4, "test/accuracy": 0.92, "test/f1": 0.8})
    return make(
        rows,
        recipe=PICTURES,
        baseline={"majority_accuracy": 0.1, "nearest_mean_accuracy": 0.9},
        unit="nats/picture",
    )


def test_a_run_is_compared_by_the_metric_of_its_recipe(pictures: Path) -> None:
    figures_of_run = read_run_summary(pictures).figures()
    assert (
        figures_of_run["figure"],
        figures_of_run["mode"],
        figures_of_run["best_validation"],
        figures_of_run["best_step"],
        figures_of_run["test"],
    ) == (
        "accuracy",
        "max",
        0.95,
        15,
        0.92,
    )
    assert figures_of_run["baseline"] == {"name": "nearest mean", "value": 0.9}
    assert figures_of_run["ahead_of_baseline"] == pytest.approx(0.05)
    assert "above its 0.9000 accuracy" in written(pictures)


def test_each_validation_metric_has_a_chart_and_each_baseline_a_line(pictures: Path) -> None:
    charts = figures(written(pictures))
    assert [layout["yaxis"]["title"]["text"] for _, layout in charts[:3]] == [
        "accuracy",
        "nats/picture",
        "F1",
    ]
    assert [shape["name"] for shape in charts[0][1]["shapes"]] == [
        "majority model: 0.1",
        "nearest mean model: 0.9",
    ]
    assert charts[2][0]["validation"]["y"] == pytest.approx([0.5, 0.85, 0.8])
    assert "samples per second" in charts[4][0]


def test_without_a_recipe_lower_error_rates_and_higher_accuracy_are_better(make: Make) -> None:
    folder = make(
        [
            {
                "kind": "validation",
                "step": 5,
                "validation/loss": 1.0,
                "validation/wer": 0.5,
                "validation/class_accuracy": 0.5,
            }
        ]
    )
    assert [(each.name, each.mode) for each in read_run_summary(folder).measured()] == [
        ("loss", "min"),
        ("wer", "min"),
        ("class_accuracy", "max"),
    ]


@pytest.mark.parametrize(("tokens", "unit"), [(0.0, "samples"), (16.0, "samples"), (160.0, "tokens")])
def test_throughput_is_in_the_unit_of_the_workload(make: Make, tokens: float, unit: str) -> None:
    page = written(make([row(10, tokens_per_second=tokens), row(20, tokens_per_second=tokens)]))
    assert f"{unit} per second, median" in page
    assert any(f"{unit} per second" in lines for lines, _ in figures(page))


def test_decisions_and_rejected_steps_are_marked_and_listed(make: Make) -> None:
    decisions = [
        {
            "kind": "decision",
            "step": 10,
            "what": "learning rate factor",
            "old": 1.0,
            "new": 0.5,
            "why": "no better <since> 2 validations",
        },
        {
            "kind": "decision",
            "step": 20,
            "what": "global batch",
            "old": 8,
            "new": 16,
            "why": "noise scale 40",
        },
        {"kind": "event", "step": 15, "what": "roll_back", "text": "step 16: the loss spiked"},
    ]
    folder = make([row(10), row(20, lr=5e-4), *decisions, row(30, lr=5e-4, global_batch=16)])
    page = written(folder)
    charts = {next(iter(lines)): lines for lines, _ in figures(page)}
    rate, batch = charts["learning rate"]["decision"], charts["global batch"]["decision"]
    assert (rate["x"], rate["y"], rate["text"]) == (
        [10],
        [1e-3],
        ["learning rate factor 1 → 0.5: no better &lt;since&gt; 2 validations"],
    )
    assert (batch["x"], batch["y"]) == ([20], [8])
    listed = page[page.index("Decisions and rejected") :]
    assert [
        listed.index(word) for word in ("1 → 0.5", "8 → 16", "roll back", "step 16: the loss spiked")
    ] == sorted(listed.index(word) for word in ("1 → 0.5", "8 → 16", "roll back", "step 16: the loss spiked"))
    assert (
        read_run_summary(folder).figures()["decisions"],
        read_run_summary(folder).figures()["events"],
    ) == (2, 1)


def test_a_constant_batch_has_no_chart(make: Make) -> None:
    assert "Samples per step" not in written(make([row(10), row(20)]))


def test_the_time_breakdown_has_the_seconds_of_the_rows(make: Make) -> None:
    rows = [row(10 * number, communication=0.2) for number in range(1, 201)]
    launches = [{"at": "2026-01-01T10:00:00+00:00", "seconds": 1500.0, "first_step_seconds": 30.0}]
    folder = make(rows, launches=launches, starts=[{"at": "2026-01-01T10:00:10+00:00", "from_step": 500}])
    summary = read_run_summary(folder)
    columns = stacked(summary.rows, summary.launches, summary.starts)
    assert len(columns) <= 60
    assert (columns[0].first, columns[-1].last) == (0, 2000)
    assert sum(each.seconds["communicating"] for each in columns) == pytest.approx(200.0)
    assert sum(each.seconds["waiting for data"] for each in columns) == pytest.approx(100.0)
    assert [column for column in columns if "starting" in column.seconds] == [
        next(each for each in columns if each.first <= 500 < each.last)
    ]
    assert dict(summary.time_shares())["ending and lost work"] == pytest.approx(1500 - 30 - 1000 - 200 * 0.5)
    bars, layout = figures(written(folder))[-1]
    assert layout["barmode"] == "stack"
    assert sum(bars[part]["y"][3] for part in bars) == pytest.approx(100)
    assert list(bars) == [
        "computing",
        "communicating",
        "waiting for data",
        "saving checkpoints",
        "validating",
        "starting",
    ]


def test_the_cost_is_that_of_whole_nodes_at_the_price_of_their_pool(make: Make) -> None:
    place = {"name": "prod", "cloud": "aws", "pools": POOLS}
    launches = [
        {"workers": 9, "seconds": 1800.0, "platform": place},
        {"workers": 2, "seconds": 3600.0, "platform": place},
        {"workers": 4, "seconds": 99},
    ]
    folder = make([row(10)], launches=launches)
    small, big, own = read_run_summary(folder).cost()
    assert (big.nodes, big.node_hours, big.usd) == (2, 2.0, 120.0)
    assert (small.nodes, small.node_hours, small.usd) == (9, 6.5, 3.25)
    assert (own.pool, own.usd) == ("own", None)
    page = written(folder)
    assert "$3.25" in page
    assert "unknown" in page


@pytest.mark.parametrize(
    ("launches", "reason"),
    [
        ([], "No launch named a platform"),
        (
            [
                {
                    "workers": 1,
                    "seconds": 5.0,
                    "platform": {"name": "here", "cloud": "local", "pools": POOLS[2:]},
                }
            ],
            "The catalogue has no price",
        ),
        (
            [{"workers": 1, "platform": {"name": "here", "cloud": "local", "pools": POOLS}}],
            "no launch has ended yet",
        ),
    ],
)
def test_a_page_without_a_cost_names_the_reason(
    make: Make, launches: list[dict[str, Any]], reason: str
) -> None:
    folder = make([row(10)], launches=launches)
    assert reason in written(folder)
    assert "$" not in re.sub(r"(?s)<script.*?</script>", "", written(folder))


def test_a_killed_launch_counts_until_its_last_write(make: Make) -> None:
    folder = make(
        [row(10)],
        status="running",
        launches=[{"at": "2026-01-01T10:00:00+00:00", "on": "torchrun", "workers": 2}],
    )
    for file in folder.iterdir():
        os.utime(file, (1767261660, 1767261660))  # 2026-01-01T10:01:00
    summary = read_run_summary(folder)
    assert summary.status() == "killed"
    assert summary.figures()["seconds"] == 60.0
    assert dict(summary.time_shares())["ending and lost work"] == pytest.approx(60 - 5.5)


def test_rows_with_any_values_give_a_valid_page(make: Make) -> None:
    odd = [
        {"kind": "train", "step": 1, "loss": None, "lr": "high", "step_seconds": "1"},
        {"kind": "train", "step": 2, "loss": float("nan"), "global_batch": True},
        {"kind": "decision", "step": 2, "what": "learning rate factor"},
        {"kind": "event", "step": 2},
        {"kind": "else", "step": 3, "x": [1]},
        {"kind": "validation", "step": 3, "validation/loss": float("inf")},
    ]
    folder = make(
        odd, recipe="checkpoint: [no, mapping]\n", launches="none", starts=[1], baseline=[2], data=[3]
    )
    (folder / "metrics.jsonl").open("a").write('[1, 2]\n{"kind": "train"}\n')
    page = written(folder)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "2 lines of metrics.jsonl could not be read" in page


def test_a_run_below_a_url_is_read_from_its_store(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainfleet.training.report import run_summary as module
    from trainfleet.training.stores import open_store

    folder = make([row(10)], status="running")
    (folder / "checkpoints" / "step-00000010").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000010" / "COMMITTED").write_text(
        json.dumps({"note": {"metrics": {"validation/loss": 0.5}}})
    )
    (folder / "profile").mkdir()
    (folder / "profile" / "rank-0.trace.json.gz").write_bytes(b"1234")
    asked: list[str] = []

    def open_fake_store(url: str, patience: Any = None) -> Any:
        asked.append(url)
        return open_store(url.replace("s3://bucket/runs", str(folder.parent)))

    monkeypatch.setattr(module, "open_store", open_fake_store)
    summary = read_run_summary(root := "s3://bucket/runs/try")
    assert asked == [root, f"{root}/checkpoints", root]
    assert summary.profiles == {"rank-0.trace.json.gz": 4}
    # the status is not verified for a remote run
    assert (summary.last_step, summary.status()) == (10, "running")
    assert [each.name for each in summary.checkpoints or []] == ["step-00000010"]


def test_a_store_that_does_not_respond_only_hides_the_list_of_checkpoints(make: Make) -> None:
    folder = make([row(10)])
    (folder / "home.json").write_text('{"url": "nowhere://bucket/runs/try", "uploads": 3}')
    assert read_run_summary(folder).checkpoints is None
    assert "did not respond" in written(folder)


@pytest.fixture
def three(make: Make, pictures: Path) -> list[Path]:
    """The classifier; a better and slower one whose recipe differs in two keys; and one that has just
    started.
    """
    better = [
        row(10, accuracy=0.7, step_seconds=1.0),
        {"kind": "validation", "step": 10, "validation/accuracy": 0.99, "validation/loss": 0.1},
    ]
    other = make(better, "other", f"{PICTURES}optimizer: {{lr: 0.1}}\nstrategy: fsdp\n")
    return [pictures, other, make([row(5)], "young", PICTURES, status="running")]


def test_several_runs_are_overlaid_by_step_and_by_time(three: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "all.html"
    write_comparison(three, target)
    page = target.read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == parser.fetched == []
    steps, times = (lines for lines, _ in figures(page)[:2])
    assert {name: line["y"] for name, line in steps.items()} == {"try": [0.6, 0.95, 0.9], "other": [0.99]}
    assert (steps["other"]["x"], times["other"]["x"]) == ([10], [pytest.approx(10.5 / 60)])
    assert times["try"]["x"] == pytest.approx([5.5 / 60, 5.5 / 60, 11 / 60])
    assert "young has no validation result for accuracy yet" in page


def test_the_better_metric_and_recipe_differences_are_highlighted(three: list[Path]) -> None:
    summaries = [read_run_summary(each) for each in three]
    assert differences(summaries) == {"optimizer.lr": ["–", "0.1", "–"], "strategy": ["–", "fsdp", "–"]}
    page = comparison(summaries)
    line = page[page.index("best validation (accuracy)") :]
    assert re.findall(r'class="figure( best)?">([^<]+)<', line)[:3] == [
        ("", "0.9500"),
        (" best", "0.9900"),
        ("", "–"),
    ]


def test_runs_of_one_name_are_labelled_by_their_folder(make: Make) -> None:
    summaries = [read_run_summary(make([row(10)], f"{folder}/same")) for folder in ("a", "b")]
    assert ">a/same " in comparison(summaries)
    assert ">b/same " in comparison(summaries)


def test_the_command_compares(trainfleet: Callable[..., Any], three: list[Path], tmp_path: Path) -> None:
    done = trainfleet("report", *map(str, three), "-o", str(tmp_path / "c.html"), "--json")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert [run["best_validation"] for run in comparison["runs"]] == [0.95, 0.99, None]
    assert comparison["recipe_differences"]["strategy"] == ["–", "fsdp", "–"]
    assert (tmp_path / "c.html").read_text().endswith("</html>")

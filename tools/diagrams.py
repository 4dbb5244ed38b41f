"""Writes the two diagrams of the documentation: `python -m tools.diagrams`.

`system.svg` shows who does what with which part. `run-lifecycle.svg` shows a run from its recipe to its
report, and where it continues after an interruption. A test compares the files with this script.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from tools.drawing import EDGE, WIDTH, Box, Drawing
from trainfleet.files import write_whole

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images"
GAP, ARROW = 10, 30
INNER = WIDTH - 2 * EDGE


def system() -> str:
    """The system, from a spec to a report."""
    drawing = Drawing(
        "Trainfleet: from a platform spec to a training report",
        "A platform engineer writes a spec per stack. Rehearsal, diff and policies review it without an "
        "account, by hand and in CI. pulumi up creates the platform on AWS, Google Cloud, Azure or an "
        "existing Kubernetes cluster, with the same cluster layer on each. The stack outputs are the "
        "contract that launchers read. An ML engineer launches a recipe on a machine, on the clusters or on "
        "VMs; the run writes checkpoints and metrics to the bucket, resumes from it, and ends in a report.",
    )
    spec = drawing.card(
        Box(EDGE, EDGE, INNER, 0),
        "Spec",
        "`stacks/Pulumi.<env>.yaml`, validated as `PlatformSpec`: all errors at once, each with its line.",
        roles=["platform"],
    )
    review = drawing.card(
        _below(drawing, spec),
        "Review, without an account",
        roles=["ci", "platform"],
        inside=lambda x, y, width: _reviews(drawing, x, y, width),
    )
    platform = drawing.card(
        _below(drawing, review, "`pulumi up`"),
        "Platform",
        roles=["platform"],
        inside=lambda x, y, width: _clouds(drawing, x, y, width),
    )
    layer = drawing.card(
        _below(drawing, platform),
        "Cluster layer, the same on every cluster",
        inside=lambda x, y, width: drawing.pills(x, y, LAYER, width=width),
    )
    outputs = drawing.card(
        _below(drawing, layer),
        "Stack outputs: the contract",
        "Versioned. Cluster, pools, fabric, queue, bucket and image: all that launchers know of a platform.",
    )
    launchers = drawing.card(
        _below(drawing, outputs),
        "Launchers",
        "`trainfleet launch RECIPE --on ...`: one recipe, one command.",
        roles=["ml"],
        kind="train",
        inside=lambda x, y, width: _launchers(drawing, x, y, width),
    )
    run = drawing.card(
        _below(drawing, launchers),
        "Run",
        "The same step loop under Ray Train, or under torchrun without Ray: DDP, FSDP2 or HSDP is one word "
        "in the recipe.",
        kind="train",
    )
    height = _storage_and_report(drawing, run)
    return drawing.svg(height + EDGE)


LAYER = [
    "KubeRay",
    "Kueue",
    "GPU and RDMA plugins",
    "External Secrets",
    "Prometheus",
    "Grafana",
    "logs",
    "network policies",
]
CLOUDS = (
    ("", "AWS", "GCP", "Azure", "Kubernetes"),
    ("network", "VPC", "VPC", "VNet", "existing"),
    ("cluster", "EKS", "GKE", "AKS", "existing"),
    ("pools", "node groups", "node pools", "node pools", "by labels"),
    ("bucket", "S3", "GCS", "Blob", "by its URL"),
)


def _below(drawing: Drawing, box: Box, label: str = "") -> Box:
    """Where the next card begins, after an arrow from the one above."""
    length = ARROW + (16 if label else 0)
    drawing.arrow((box.middle, box.bottom), (box.middle, box.bottom + length))
    if label:
        drawing.text(box.middle + 14, box.bottom + length / 2 - 12, label, "label")
    return Box(EDGE, box.bottom + length, INNER, 0)


def _columns(
    drawing: Drawing, place: tuple[float, float, float], columns: Sequence[tuple[str, str]]
) -> float:
    """Boxes of one height side by side, each with a name and a text. Returns where they end."""
    x, y, width = place
    each = (width - GAP * (len(columns) - 1)) / len(columns)
    at, bottom = len(drawing.items), y
    lefts = [x + number * (each + GAP) for number in range(len(columns))]
    for left, (name, text) in zip(lefts, columns, strict=True):
        end = drawing.text(left + 10, y + 8, name, "name", each - 20)
        bottom = max(bottom, drawing.text(left + 10, end, text, "body", each - 20) + 8)
    for left in lefts:
        drawing.rect(Box(left, y, each, bottom - y), "inner", at=at)
    return bottom


def _reviews(drawing: Drawing, x: float, y: float, width: float) -> float:
    """The commands that review a spec. Returns where they end."""
    return _columns(
        drawing,
        (x, y, width),
        [
            ("rehearse", "the real Pulumi engine on simulated clouds, with injected faults"),
            ("diff", "what is replaced, what is lost, and what it costs"),
            ("policies", "one rule set, and how each cloud satisfies it"),
        ],
    )


def _clouds(drawing: Drawing, x: float, y: float, width: float) -> float:
    """What each cloud is asked for, as a table. Returns where it ends."""
    first, line = 74.0, 27.0
    each = (width - first - 4 * 6) / 4
    for column in range(1, 5):
        left = x + first + 6 * column + each * (column - 1)
        drawing.rect(Box(left, y, each, line * len(CLOUDS) + 8), "inner")
        for row, names in enumerate(CLOUDS):
            drawing.text(
                left + each / 2,
                y + 4 + line * row + 3,
                names[column],
                "body" if row else "name",
                each - 8,
                anchor="middle",
            )
    for row, names in enumerate(CLOUDS[1:], start=1):
        drawing.text(x, y + 4 + line * row + 3, names[0], "name")
    return y + line * len(CLOUDS) + 8


def _launchers(drawing: Drawing, x: float, y: float, width: float) -> float:
    """The launchers by where they run. Returns where they end."""
    return _columns(
        drawing,
        (x, y, width),
        [
            ("local, torchrun", "this machine"),
            ("kuberay, sky", "the platforms' clusters"),
            ("ray-up", "VMs or hosts, without Kubernetes"),
        ],
    )


def _storage_and_report(drawing: Drawing, run: Box) -> float:
    """The bucket below the run, and the report next to it. Returns where they end."""
    top, width = run.bottom + 58, 276.0
    bucket = drawing.card(
        Box(EDGE, top, width, 0),
        "Bucket or folder",
        "Committed checkpoints, metrics, events and recipe of each run.",
    )
    left = bucket.right + 40
    report = drawing.card(
        Box(left, top, WIDTH - EDGE - left, bucket.height),
        "Report",
        "One HTML file: curves, time, cost. Then: evaluate, publish, serve.",
        roles=["ml"],
        kind="train",
    )
    drawing.arrow((70, run.bottom), (70, top))
    drawing.text(82, run.bottom + 19, "writes", "label")
    drawing.arrow((180, top), (180, run.bottom), dashed=True)
    drawing.text(192, run.bottom + 19, "resumes", "label")
    drawing.arrow((bucket.right, bucket.center), (report.x, bucket.center))
    return max(bucket.bottom, report.bottom)


LEFT, RIGHT = Box(EDGE, 0, 296, 0), Box(352, 0, 248, 0)
"""The columns of a run's stages and of its interruptions."""
TRUNK = 620
"""Where the line runs that leads from training to the interruptions."""
INDENT = 30
"""Of the stages inside training: space for the arrow from one step to the next."""

BEFORE = (
    (
        ("Launch checks", "Recipe, platform and storage. Errors are reported before anything starts."),
        ("Ctrl-C", "All ranks save, and the run stops. The same command resumes it."),
    ),
    (
        ("Queue, provision", "On a cluster: Kueue admits the run, or SkyPilot finds a pool."),
        ("Managed job lost pods", "SkyPilot starts new pods, on this cluster or another."),
    ),
    (
        ("Workers start", "One process per rank. A lease keeps other launches out."),
        ("Pod or head lost", "KubeRay replaces it. After a lost head the run is submitted again."),
    ),
    (
        ("Restore", "The newest committed checkpoint whose checksums match, or step 0."),
        ("Worker process lost", "Workers restart in place, by Ray Train or torchrun."),
    ),
)
"""The stages before the first step, each with the interruption after which a run continues there."""
DURING = (
    (
        ("Step loop", "Global batch, gradients, guards, optimizer; at intervals metrics and validation."),
        ("NaN or loss spike", "Guards stop the run, skip the step, or roll back to a checkpoint."),
    ),
    (
        ("Asynchronous save", "A snapshot in memory. Each rank writes its share while steps continue."),
        ("Preemption notice", "All ranks save at once. Steps continue until the machine goes."),
    ),
    (
        ("Commit marker", "`COMMITTED` comes last, with all checksums. Without it, nothing was saved."),
        (
            "Store error",
            "Calls are retried; past the limit the run stops and names its last good checkpoint.",
        ),
    ),
)
"""The stages of training, each with what can happen to it."""
Labels = tuple[str, str]


def lifecycle() -> str:
    """The life cycle of a run."""
    drawing = Drawing(
        "The life cycle of a training run",
        "A recipe with overrides is checked, queued and provisioned; workers start, and restore the newest "
        "committed checkpoint. The step loop saves checkpoints asynchronously; each becomes valid with its "
        "commit marker. After the last step come test metrics, the report, and evaluate, publish, predict "
        "or serve. A lost worker process leads back to the restore, a lost pod or head to the start of the "
        "workers, a managed job that lost its pods to the queue, and Ctrl-C to the next launch. A "
        "preemption notice saves at once. Store errors are retried.",
    )
    bottom = drawing.text(
        RIGHT.x, EDGE + 12, "Interruptions, and where the run continues", "title", RIGHT.width
    )
    above = drawing.card(
        Box(LEFT.x, EDGE, LEFT.width, bottom - EDGE),
        "Recipe",
        "Its file, then the environment, then `key=value` overrides.",
    )
    events: list[Box] = []
    for stage, event in BEFORE:
        left, right = _row(drawing, above.bottom + ARROW, LEFT, stage, event)
        drawing.arrow((above.middle, above.bottom), (left.middle, left.y))
        above, events = left, [*events, right]
    training = _training(drawing, above, events)
    finish = drawing.card(
        _below(drawing, training, "after the last step"),
        "Finish",
        "Test metrics over all ranks, then the last commit.",
    )
    report = drawing.card(
        _below(drawing, finish),
        "Report",
        "`report.html`, next to the metrics. Then:",
        kind="train",
        inside=lambda x, y, width: drawing.pills(
            x, y, ["evaluate", "publish", "predict", "serve"], width=width
        ),
    )
    return drawing.svg(report.bottom + EDGE)


def _training(drawing: Drawing, above: Box, events: list[Box]) -> Box:
    """The stages that repeat, in a frame of their own, and the line from it to every interruption."""
    at, top = len(drawing.items), above.bottom + ARROW
    exit_at = top + 26
    drawing.text(LEFT.x + 14, top + 10, "Training", "title", LEFT.width)
    drawing.text(RIGHT.x, exit_at - 22, "interrupted", "label")
    column = Box(LEFT.x + INDENT, 0, LEFT.width - INDENT - 12, 0)
    y, stages = top + 44, list[Box]()
    for stage, event in DURING:
        left, right = _row(drawing, y, column, stage, event)
        stages, events, y = [*stages, left], [*events, right], left.bottom + ARROW
    for one, other in pairwise(stages):
        drawing.arrow((one.middle, one.bottom), (other.middle, other.y))
    loop = stages[0]
    drawing.arrow(
        (loop.x, loop.bottom - 18),
        (loop.x - 16, loop.bottom - 18),
        (loop.x - 16, loop.y + 18),
        (loop.x, loop.y + 18),
    )
    frame = Box(LEFT.x, top, LEFT.width, stages[-1].bottom + 12 - top)
    drawing.rect(frame, "train", at=at)
    drawing.arrow((above.middle, above.bottom), (frame.middle, frame.y))
    trunk = [(TRUNK, events[0].center), (TRUNK, events[-1].center)]
    drawing.line((frame.right, exit_at), (TRUNK, exit_at))
    drawing.line(*trunk)
    for box in events:
        drawing.arrow((TRUNK, box.center), (box.right, box.center))
    return frame


def _row(drawing: Drawing, top: float, column: Box, stage: Labels, event: Labels) -> tuple[Box, Box]:
    """A stage and, at its right, the interruption that leads back to it; both of one height."""
    mark, height = len(drawing.items), 0.0
    for _ in range(2):  # the first time to measure both
        del drawing.items[mark:]
        left = drawing.card(Box(column.x, top, column.width, height), *stage)
        right = drawing.card(Box(RIGHT.x, top, RIGHT.width, height), *event, kind="event", heading="name")
        height = max(left.height, right.height)
    drawing.arrow((right.x, right.center), (left.right, left.center))
    return left, right


DIAGRAMS: dict[str, Callable[[], str]] = {"system.svg": system, "run-lifecycle.svg": lifecycle}
"""Each file of docs/images, and what draws it."""


def main() -> int:
    """Write every diagram. Returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m tools.diagrams", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    for name, draw in DIAGRAMS.items():
        write_whole(FOLDER / name, draw())
        print(f"wrote {(FOLDER / name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

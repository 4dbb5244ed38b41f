"""How `train`, `launch` and `runs attach` start a run and report its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainfleet.training.launch.request import Request
    from trainfleet.training.launch.supervise import Outcome


def start_and_report(request: Request) -> None:
    """Start or resume a run, and report how it ended."""
    from trainfleet.training.launch.supervise import start

    report_end(start(request), as_json=request.json)


def report_end(outcome: Outcome, *, as_json: bool) -> None:
    """Print how a launch ended."""
    from trainfleet.console import out, print_json

    if as_json:
        print_json(outcome.document)
        return
    console = out()
    for line in closing_lines(outcome):
        console.print(line, soft_wrap=True, markup=False)


def closing_lines(outcome: Outcome) -> list[str]:
    """What a person reads at the end: the scores, compared with simple models, and where the files are."""
    from trainfleet.training.runtime.progress import duration

    document = outcome.document
    if document.get("status") == "detached":
        return [str(line) for line in document.get("how", [])]
    if outcome.already_finished:
        steps = f"{outcome.run_dir} is finished ({document['step']} steps)"
        return [f"{steps}; nothing to do. --fresh starts over.", *_files(document)]
    resumed = f", resumed from step {document['resumed_from']}" if document["resumed_from"] else ""
    return [
        f"finished {document['step']} steps in {duration(document['seconds'])}{resumed}",
        *_scores(document),
        *_files(document),
    ]


def _scores(document: dict[str, Any]) -> list[str]:
    """The validation compared with each simple model of the same metric, and the test; else the losses."""
    from trainfleet.training.report.run_summary import METRIC_WORDS

    metrics: dict[str, float] = document["metrics"]
    lines, compared = [], []
    for key, simple in document["baseline"].items():
        metric = next(
            (name for name in sorted(METRIC_WORDS, key=len, reverse=True) if key.endswith(f"_{name}")), None
        )
        value = metrics.get(f"validation/{metric}")
        if metric is not None and value is not None:
            model = key.removesuffix(f"_{metric}").replace("_", " ")
            side = "below" if value <= simple else "above"
            difference = f"{abs(simple - value):.4f} {side} a {model} model's {simple:.4f}"
            lines.append(f"validation {value:.4f} {METRIC_WORDS[metric]}, {difference}")
            compared.append(metric)
    names = list(dict.fromkeys(compared)) or ["loss"]
    if names == ["loss"] and "validation/loss" in metrics:
        lines.append(f"validation {metrics['validation/loss']:.4f} loss")
    return lines + [
        f"test       {metrics[f'test/{name}']:.4f} {METRIC_WORDS[name]}"
        for name in names
        if f"test/{name}" in metrics
    ]


def _files(document: dict[str, Any]) -> list[str]:
    return [f"{name:<10} {document[name]}" for name in ("checkpoint", "report") if document.get(name)]

"""Time from Enter to a run's first step on a warm cluster, for an edited workload, by launcher and phase.

    python -m benchmarks.first_step [--cluster NAME] [--smoke] [--json]

Each round edits the workload of docs/add-a-workload.md and launches it with `--code` and two workers on a
cluster that outlives its runs: first the rounds of KubeRay, then those of SkyPilot, because the local cluster
holds one of them at a time. The yardsticks are torchrun in a pod that runs (the imports and the first step
alone) and `sky exec` of `echo`. Without `--cluster`, a local cluster is
started and deleted, which needs root. Nearly all of the time is imports and process starts, so other load
affects it in full.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.first_step_place import NAMESPACE, WARM, Place, Timed, place
from trainfleet.errors import TrainfleetError

LAUNCHERS = ("kuberay", "sky")
TARGET = 30.0
ROUNDS = 5

Mark = tuple[str, Callable[[Mapping[str, Any]], bool]]


def _note(text: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda event: event["kind"] == "note" and text in str(event["text"])


def _kind(kind: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda event: event["kind"] == kind


MARKS: dict[str, tuple[Mark, ...]] = {
    "kuberay": (
        ("command line, checks, upload, objects", _note("submitted as")),
        ("RayJob, submitter's pod", _note("setting up: Ray starts")),
        ("driver, worker processes", _kind("worker")),
        ("ranks' imports, first step", _kind("step")),
    ),
    "sky": (
        ("command line, checks, upload", _note("starting SkyPilot")),
        ("SkyPilot's imports, contexts", _note("asking SkyPilot")),
        ("state of the cluster", _note("on the cluster")),
        ("request", _note("is queued as job")),
        ("start of the task", _note("the task runs in the pods")),
        ("Ray", _note("Ray runs")),
        ("driver, worker processes", _kind("worker")),
        ("ranks' imports, first step", _kind("step")),
    ),
}
"""By launcher: each phase, and the event that ends it."""

PODS = {
    "kuberay": (f"ray.io/cluster={WARM},ray.io/node-type=worker", "ray-worker"),
    "sky": (f"trainfleet.io/cluster={WARM}", "ray-node"),
}
"""By launcher: the label selector of its cluster's pods, and their container."""


def phases(launcher: str, began: float, events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each phase; one whose event did not come is part of the next.

    Raises:
        TrainfleetError: there was no step.
    """
    found: dict[str, float] = {}
    last = began
    for name, ends in MARKS[launcher]:
        at = next((float(event["at"]) for event in events if ends(event)), None)
        if at is not None:
            found[name] = max(at - last, 0.0)
            last = max(at, last)
    if not any(event["kind"] == "step" for event in events):
        raise TrainfleetError(f"a run with {launcher} made no step")
    return found | {"in all": last - began}


def torchrun(here: Place, pod: str, container: str) -> dict[str, float]:
    """The same workload with torchrun in a pod that runs: no launcher, Ray, or store."""
    source, recipe = (here.recipe.with_suffix(end).read_text(encoding="utf-8") for end in (".py", ".yaml"))
    changes = (
        "steps=3 optimizer.warmup=1 log.every=1 validation.every=3 checkpoint.every=3 log.tensorboard=false"
    )
    script = f"""
d=$(mktemp -d); cd "$d"
cat > spirals.py <<'END_OF_FILE'
{source}
END_OF_FILE
cat > spirals.yaml <<'END_OF_FILE'
{recipe}
END_OF_FILE
export PYTHONPATH=$d PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
python -m torch.distributed.run --standalone --nproc-per-node 2 -m trainfleet.training.run spirals.yaml \
  {changes} storage=$d/runs
"""
    execute = ["kubectl", "-n", NAMESPACE, "exec", pod, "-c", container, "--", "bash", "-c", script]
    return {"in all": here.timed(*execute).until(r"^step ")}


def echo(here: Place) -> dict[str, float]:
    """SkyPilot's own command line with a task that needs nothing."""
    program = str(Path(sys.executable).with_name("sky"))
    found = here.timed(program, "exec", WARM, "--num-nodes", "2", "echo it-runs", enough=_printed)
    return {"in all": found.until(PRINTED)}


PRINTED = r"pid=.*it-runs"
"""What the task prints; the command line repeats the command before."""


def _printed(line: str) -> bool:
    return re.search(PRINTED, line) is not None


def _launched(here: Place, launcher: str, run: str) -> dict[str, float]:
    here.edit(run)
    found: Timed = here.launch(launcher, run)
    return phases(launcher, found.began, found.events())


def measure(cluster: str, rounds: int, launchers: Sequence[str] = LAUNCHERS) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds."""
    raw: dict[str, list[dict[str, Any]]] = {}

    def add(what: str, seconds: dict[str, float]) -> None:
        load = round(os.getloadavg()[0], 2)
        raw.setdefault(what, []).append(
            {"load": load, "seconds": {k: round(v, 2) for k, v in seconds.items()}}
        )
        print(f"{what}: {seconds['in all']:.1f} s at load {load}", file=sys.stderr)

    with place(cluster, launchers) as here:
        for launcher in launchers:
            add(f"{launcher}, creates the cluster", _launched(here, launcher, f"{launcher}-first"))
            for number in range(rounds):
                add(launcher, _launched(here, launcher, f"{launcher}-{number}"))
                if launcher == "sky":
                    add("sky exec echo", echo(here))
                selector, container = PODS[launcher]
                add("torchrun in a pod", torchrun(here, here.pods(selector)[0], container))
            here.delete_warm(launcher)
    return {
        **command.environment(("torch", "ray", "skypilot")),
        "rounds": rounds,
        "seconds": {what: _summaries([each["seconds"] for each in runs]) for what, runs in raw.items()},
        "raw": raw,
        "target": TARGET,
    }


def _summaries(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(name for run in runs for name in run if name != "in all")
    return {name: command.summary([run.get(name, 0.0) for run in runs], 1) for name in (*names, "in all")}


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    loads = [run["load"] for runs in document["raw"].values() for run in runs]
    print(f"Enter to the first step, {document['rounds']} rounds, load {min(loads)} to {max(loads)}\n")
    print("| what | phase | median s | min | max | target |")
    print("|---|---|---|---|---|---|")
    for what, by_phase in document["seconds"].items():
        for phase, row in by_phase.items():
            target = f"<= {document['target']:g} s" if phase == "in all" and what in LAUNCHERS else ""
            print(f"| {what} | {phase} | {row['median']} | {row['least']} | {row['most']} | {target} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name, 1 if smoke else ROUNDS, LAUNCHERS)


def main() -> int:
    """Measure and print; a smoke run makes one round."""
    return command.run(__doc__, "cluster", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())

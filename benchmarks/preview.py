"""Overhead of components, spec and rules: previews compared with flat programs of the same resources.

    python -m benchmarks.preview [--stack NAME] [--smoke] [--json]

Both alternate on the same engine and the same simulated clouds, so that other load slows both. The flat
program is generated from the state of an applied platform and must plan the same resources. It also reports
the peak memory of the program, the SDK modules that it imports, and the time of two common commands. The
first run of each compiles Python files and is not counted.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import command
from benchmarks.flat_program import Resource, differences, resources, settings, write_program
from trainfleet.errors import TrainfleetError
from trainfleet.rehearsal.engine.engine_cli import Outcome, Runner
from trainfleet.rehearsal.engine.find import Engine, find_engine
from trainfleet.rehearsal.engine.sandbox import Project, read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.steps.selection import managed
from trainfleet.rehearsal.steps.session import APPLY

ROOT = Path(__file__).resolve().parent.parent
STACKS = ("aws-prod", "gcp-prod", "azure-prod")
SMOKE = ("aws-dev",)
TARGETS = {
    "ratio": 1.15,
    "memory": 1.15,
    "modules": 0,
    "trainfleet --help": 0.4,
    "trainfleet spec check": 0.5,
}
PACKAGES = ("pulumi", "pulumi-aws", "pulumi-gcp", "pulumi-azure-native", "pulumi-kubernetes")


class Measured(NamedTuple):
    """Previews of one program: the seconds of each, the program's peak memory (MiB) and the imported SDK
    modules.
    """

    seconds: list[float]
    memory: float
    modules: frozenset[str]


def measure(stacks: Sequence[str], rounds: int, calls: int) -> dict[str, Any]:
    """Measure everything and return the document of `--json`. Times are in seconds, memory in MiB."""
    engine = find_engine(lambda line: print(line, file=sys.stderr))
    commands = {"trainfleet --help": ["--help"], "trainfleet spec check": ["spec", "check", stacks[0]]}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "engine": engine.version,
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "stacks": {stack: compared(read_project(ROOT, stack), engine, rounds) for stack in stacks},
        "commands": {
            name: figures([call(arguments) for _ in range(calls + 1)][1:])
            for name, arguments in commands.items()
        },
        "targets": TARGETS,
    }


def compared(project: Project, engine: Engine, rounds: int) -> dict[str, Any]:
    """Compare one stack with the flat program of its resources."""
    created, config = applied(project, engine)
    with tempfile.TemporaryDirectory(prefix="trainfleet-flat-") as folder:
        write_program(Path(folder), created, config)
        structured, flat = interleaved(project, read_project(Path(folder)), engine, rounds)
    return {
        "resources": len(created),
        "structured": figures(structured.seconds),
        "flat": figures(flat.seconds),
        "ratio": ratio(structured.seconds, flat.seconds),
        "memory": {
            "structured": round(structured.memory, 1),
            "flat": round(flat.memory, 1),
            "ratio": round(structured.memory / flat.memory, 3),
        },
        "modules": {
            "count": len(structured.modules),
            "not in the flat program": sorted(structured.modules - flat.modules),
        },
    }


def applied(project: Project, engine: Engine) -> tuple[list[Resource], dict[str, Any]]:
    """Apply a stack to a simulated cloud; returns the resources in its state and its providers' settings."""
    with rehearsal_session(project, engine, RehearsalOptions()) as rehearsal:
        early = planned(preview(rehearsal.runner))
        expect(rehearsal.runner.run(*APPLY), f"the apply of {project.stack}")
        state = rehearsal.resources()
        return resources(state, early), settings(state)


def interleaved(structured: Project, flat: Project, engine: Engine, rounds: int) -> tuple[Measured, Measured]:
    """Preview both programs alternately, each round in the other order. The first preview of each is not
    counted.

    Raises:
        TrainfleetError: a preview fails, or the two programs plan different resources.
    """
    options = RehearsalOptions()
    with (
        rehearsal_session(structured, engine, options) as one,
        rehearsal_session(flat, engine, options) as other,
    ):
        found = differences(planned(preview(one.runner)), planned(preview(other.runner)))
        if found:
            raise TrainfleetError("the flat program plans other resources: " + "; ".join(found[:5]))
        footprints = [footprint(session.runner) for session in (one, other)]
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                times[which].append(preview((one, other)[which].runner).seconds)
        return Measured(times[0], *footprints[0]), Measured(times[1], *footprints[1])


def footprint(runner: Runner) -> tuple[float, frozenset[str]]:
    """Return the peak memory of a runner's last program in MiB, and the SDK modules that it imported.

    Call it after the first preview: later programs start with the modules that the first one imported.
    """
    peak = int(runner.sandbox.file("program.memory").read_text()) / 1024
    names = runner.sandbox.file("program.modules").read_text().split()
    return peak, frozenset(
        ".".join(name.split(".")[:2]) for name in names if name.startswith("pulumi_") and name.count(".")
    )


def preview(runner: Runner) -> Outcome:
    """Preview a program."""
    return expect(runner.run("preview"), f"the preview of {runner.sandbox.stack}")


def expect(outcome: Outcome, what: str) -> Outcome:
    """Return a successful outcome.

    Raises:
        TrainfleetError: it failed.
    """
    if not outcome.ok:
        errors = "; ".join(text for _, text in outcome.errors) or outcome.output.strip()[-400:]
        raise TrainfleetError(f"{what} failed: {errors}")
    return outcome


def planned(outcome: Outcome) -> dict[tuple[str, str], Any]:
    """Return the planned inputs by type and name, without those that are unknown before the apply."""
    return {
        (step.token, step.name): known((step.new or {}).get("inputs") or {})
        for step in managed(outcome.steps)
    }


def known(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the known inputs, without generated names, which contain the program's name."""
    generated = inputs.get("__defaults") or []
    return {
        key: value
        for key, value in inputs.items()
        if not key.startswith("__") and key not in generated and UNKNOWN not in json.dumps(value)
    }


def figures(times: list[float]) -> dict[str, Any]:
    """Return the median, smallest and largest time, and all times."""
    return {**command.summary(times, 3), "all": [round(seconds, 3) for seconds in times]}


def ratio(structured: list[float], flat: list[float]) -> dict[str, float]:
    """Return the ratio of the medians, and the median of the rounds' ratios, which is robust to load."""
    rounds = [one / other for one, other in zip(structured, flat, strict=True)]
    return {
        "of medians": round(statistics.median(structured) / statistics.median(flat), 3),
        "median of rounds": round(statistics.median(rounds), 3),
    }


def call(arguments: list[str]) -> float:
    """Run the command line in its own process and return the seconds that it took."""
    started = time.perf_counter()
    program = str(Path(sys.executable).with_name("trainfleet"))
    subprocess.run([program, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def machine() -> dict[str, Any]:
    """Return the machine of the measurement."""
    import psutil

    model = platform.processor() or platform.machine()
    if (facts := Path("/proc/cpuinfo")).is_file():
        lines = facts.read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu": model,
        "cpus": usable,
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    on, versions, targets = document["machine"], document["versions"], document["targets"]
    machine = f"{on['cpu']}, {on['cpus']} CPUs, {on['memory_gib']} GiB, {on['system']}"
    print(f"{document['date']}, {machine}, load {on['load']} at the end")
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + "\n")
    print("| what | median s | min | max | runs | target |\n|---|---|---|---|---|---|")
    for stack, result in document["stacks"].items():
        _row(f"preview of {stack}, {result['resources']} resources", result["structured"])
        _row("the same, in one flat program", result["flat"])
        for name, value in result["ratio"].items():
            print(f"| {stack}: ratio, {name} | {value:.3f} | | | | <= {targets['ratio']} |")
    for name, row in document["commands"].items():
        _row(name, row, f"<= {targets[name]} s")
    print("\n| stack | memory MiB | flat | ratio | target | SDK modules | not in the flat program |")
    print("|---|---|---|---|---|---|---|")
    for stack, result in document["stacks"].items():
        memory, modules = result["memory"], result["modules"]
        more = ", ".join(modules["not in the flat program"]) or "none"
        cells = f"{memory['structured']} | {memory['flat']} | {memory['ratio']:.3f}"
        print(f"| {stack} | {cells} | <= {targets['memory']} | {modules['count']} | {more} |")


def _row(name: str, row: dict[str, Any], target: str = "") -> None:
    cells = " | ".join(f"{row[key]:.2f}" for key in ("median", "least", "most"))
    print(f"| {name} | {cells} | {len(row['all'])} | {target} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    stacks = (name,) if name else SMOKE if smoke else STACKS
    return measure(stacks, 1, 1) if smoke else measure(stacks, 9, 15)


def main() -> int:
    """Measure and print; the prod stack of each cloud by default, in a smoke run aws-dev."""
    return command.run(__doc__, "stack", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())

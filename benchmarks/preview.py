"""What do components, spec and rules cost? A preview of a stack of each cloud against the same resources in
one flat program.

    python -m benchmarks.preview [--stack NAME] [--smoke] [--json]

Both run on the same engine and the same simulated clouds, in turn, so that a busy machine slows both. The
flat program is
written from the state of an applied platform and must plan the very same resources, or there is no figure.
Beside the time:
the peak memory of the program, and the modules of the SDKs that it imports. Then the commands a user waits
for most. Easy to
get wrong: the first run of each compiles Python files, so it is not counted.
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
from benchmarks.flat import Resource, resources, same_resources, settings, write_program
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
SMOKE = ("aws-dev", "gcp-dev", "azure-dev")
TARGETS = {
    "ratio": 1.15,
    "memory": 1.15,
    "modules": 0,
    "trainfleet --help": 0.4,
    "trainfleet spec check": 0.5,
}
PACKAGES = ("pulumi", "pulumi-aws", "pulumi-gcp", "pulumi-azure-native", "pulumi-kubernetes")


class Measured(NamedTuple):
    """Previews of one program: seconds of each, the most memory that the program ever held (MiB), and what it
    imported of the SDKs.
    """

    seconds: list[float]
    memory: float
    modules: frozenset[str]


def measure(stacks: Sequence[str], rounds: int, calls: int) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds, memory is in
    MiB.
    """
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
    """Measure one stack against the flat program of its resources."""
    wanted, config = applied(project, engine)
    with tempfile.TemporaryDirectory(prefix="trainfleet-flat-") as folder:
        write_program(Path(folder), wanted, config)
        structured, flat = interleaved(project, read_project(Path(folder)), engine, rounds)
    return {
        "resources": len(wanted),
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
    """Apply a stack to a simulated cloud and return the resources in its state, and its providers' settings."""
    with rehearsal_session(project, engine, RehearsalOptions()) as rehearsal:
        early = planned(preview(rehearsal.runner))
        expect(rehearsal.runner.run(*APPLY), f"the apply of {project.stack}")
        state = rehearsal.resources()
        return resources(state, early), settings(state)


def interleaved(structured: Project, flat: Project, engine: Engine, rounds: int) -> tuple[Measured, Measured]:
    """Preview both programs in turn, each round in the other order. The first of each is checked and not
    counted.

    Raises:
        TrainfleetError: a preview fails, or the two do not plan the same resources.
    """
    with rehearsal_session(structured, engine, RehearsalOptions()) as one, rehearsal_session(flat, engine, RehearsalOptions()) as other:
        differences = same_resources(planned(preview(one.runner)), planned(preview(other.runner)))
        if differences:
            raise TrainfleetError("the flat program is not the same platform: " + "; ".join(differences[:5]))
        footprints = [footprint(stage.runner) for stage in (one, other)]
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                times[which].append(preview((one, other)[which].runner).seconds)
        return Measured(times[0], *footprints[0]), Measured(times[1], *footprints[1])


def footprint(runner: Runner) -> tuple[float, frozenset[str]]:
    """Return the peak memory of a runner's last program in MiB, and the SDK modules that it imported, as
    `pulumi_aws.ec2`.

    To be asked after the first preview: from the second on a program begins with what the first one imported.
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
    """Return an outcome that is good.

    Raises:
        TrainfleetError: it is not.
    """
    if not outcome.ok:
        said = "; ".join(text for _, text in outcome.errors) or outcome.output.strip()[-400:]
        raise TrainfleetError(f"{what} failed: {said}")
    return outcome


def planned(outcome: Outcome) -> dict[tuple[str, str], Any]:
    """Return what a preview plans to make: inputs by type and name, without what is not known before the
    apply.
    """
    return {
        (step.token, step.name): known((step.new or {}).get("inputs") or {})
        for step in managed(outcome.steps)
    }


def known(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs that are known whole, without names that the provider makes up (they hold the
    program's own name).
    """
    made_up = inputs.get("__defaults") or []
    return {
        key: value
        for key, value in inputs.items()
        if not key.startswith("__") and key not in made_up and UNKNOWN not in json.dumps(value)
    }


def figures(times: list[float]) -> dict[str, Any]:
    """Return the median, the smallest and the largest, and every time."""
    return {
        "median": round(statistics.median(times), 3),
        "least": round(min(times), 3),
        "most": round(max(times), 3),
        "all": [round(seconds, 3) for seconds in times],
    }


def ratio(structured: list[float], flat: list[float]) -> dict[str, float]:
    """Return the ratio of the medians, and the median of the ratios of the rounds, which a slow minute of the
    machine does not move.
    """
    rounds = [one / other for one, other in zip(structured, flat, strict=True)]
    return {
        "of medians": round(statistics.median(structured) / statistics.median(flat), 3),
        "median of rounds": round(statistics.median(rounds), 3),
    }


def call(arguments: list[str]) -> float:
    """Run the command line in a process of its own and return the seconds it took."""
    started = time.perf_counter()
    subprocess.run(
        [str(Path(sys.executable).with_name("trainfleet")), *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def machine() -> dict[str, Any]:
    """Return what it was measured on."""
    import psutil

    model = platform.processor() or platform.machine()
    if (facts := Path("/proc/cpuinfo")).is_file():
        model = next(
            (
                line.split(":", 1)[1].strip()
                for line in facts.read_text().splitlines()
                if line.startswith("model name")
            ),
            model,
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
    """Print the figures as they go into docs/benchmarks.md."""
    on, versions, targets = document["machine"], document["versions"], document["targets"]
    print(
        f"{document['date']}, {on['cpu']}, {on['cpus']} CPUs, {on['memory_gib']} GiB, {on['system']}, load {on['load']} at the end"
    )
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + "\n")
    print("| what | median s | least | most | runs | target |\n|---|---|---|---|---|---|")
    for stack, made in document["stacks"].items():
        _row(f"preview of {stack}, {made['resources']} resources", made["structured"])
        _row("the same, in one flat program", made["flat"])
        for name, value in made["ratio"].items():
            print(f"| {stack}: ratio, {name} | {value:.3f} | | | | <= {targets['ratio']} |")
    for name, row in document["commands"].items():
        _row(name, row, f"<= {targets[name]} s")
    print(
        "\n| stack | memory MiB | flat | ratio | target | SDK modules | not in the flat program |\n|---|---|---|---|---|---|---|"
    )
    for stack, made in document["stacks"].items():
        held, modules = made["memory"], made["modules"]
        more = ", ".join(modules["not in the flat program"]) or "none"
        print(
            f"| {stack} | {held['structured']} | {held['flat']} | {held['ratio']:.3f} | <= {targets['memory']} | {modules['count']} | {more} |"
        )


def _row(name: str, row: dict[str, Any], target: str = "") -> None:
    print(
        f"| {name} | {row['median']:.2f} | {row['least']:.2f} | {row['most']:.2f} | {len(row['all'])} | {target} |"
    )


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    stacks = (name,) if name else SMOKE if smoke else STACKS
    return measure(stacks, 1, 1) if smoke else measure(stacks, 9, 15)


def main() -> int:
    """Measure and print; the prod stack of each cloud by default, in a smoke run the dev stacks."""
    return command.run(__doc__, "stack", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())

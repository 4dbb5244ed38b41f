"""Tries public Pulumi programs, to measure what the simulated clouds reject although it is right.

    python -m tools.public_programs                                 the figures, from results.toml
    python -m tools.public_programs --mirror DIR [--only TEXT]      check every resource of every program
    python -m tools.public_programs --mirror DIR --engine           rehearse them to the second preview
    python -m tools.public_programs --mirror DIR --write            and write results.toml

DIR has a clone of each repository as OWNER/NAME. Nothing of a program is copied into this project: a row of
tests/rehearsal/public_programs/programs.toml names its repository and folder; its README says how to read it.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.rehearsal.report import Report, Step

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "rehearsal" / "public_programs"
PROGRAMS, RESULTS = FOLDER / "programs.toml", FOLDER / "results.toml"
ENGINE_RESULTS = FOLDER / "results_engine.toml"
_PACKAGES = ("aws", "azure-native", "gcp", "kubernetes")
SDKS = ("pulumi", *(f"pulumi-{name}" for name in _PACKAGES))
STACK = "public"
SETTINGS = {
    "aws:region": "us-west-2",
    "azure-native:location": "westus2",
    "gcp:project": "public-programs",
    "gcp:region": "us-central1",
    "gcp:zone": "us-central1-a",
}
"""What every user sets for a provider."""
PASSED, REJECTED, FALSE_ALARM, MISSING = "passed", "rejected", "false alarm", "missing"
ANSWERS = "needs answers"


@dataclass(frozen=True)
class Program:
    """A public program, and what is known about it."""

    repository: str
    commit: str
    path: str
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings that its README or its repository's tests give it; secrets are synthetic."""
    rejected: Mapping[str, str] = field(default_factory=dict)
    """What it is rejected for rightly (a part of the problem), and why that is right."""
    missing: str = ""
    """What it needs that a rehearsal cannot have; empty: nothing."""
    false_alarm: str = ""
    """Why it is a false alarm, where that is known and not corrected yet."""

    @property
    def name(self) -> str:
        """Repository and folder."""
        return f"{self.repository}/{self.path}"


@dataclass(frozen=True)
class Result:
    """How a rehearsal of a program ended."""

    program: str
    outcome: str
    resources: int = 0
    step: str = ""
    """The step that failed."""
    problems: tuple[str, ...] = ()
    explanation: str = ""
    """Why it is a false alarm, from the program's row."""


def programs(file: Path = PROGRAMS) -> Iterator[Program]:
    """Yield the programs."""
    for repository in tomllib.loads(file.read_text(encoding="utf-8"))["repository"]:
        for row in repository["program"]:
            yield Program(repository["name"], repository["commit"], **row)


def results(file: Path = RESULTS) -> dict[str, Result]:
    """Return the results that were written last, by program."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["result"] if file.is_file() else []
    return {row["program"]: Result(**{**row, "problems": tuple(row.get("problems", ()))}) for row in rows}


def sdks(file: Path = RESULTS) -> dict[str, str]:
    """Return the versions of the SDKs with which the results were written."""
    return dict(tomllib.loads(file.read_text(encoding="utf-8"))["sdks"])


def outcome(program: Program, report: Report) -> Result:
    """Return the result of a report.

    A rejection is right if the program's row explains each problem. A program needs answers if it reads
    nothing else than what rehearsal.toml does not tell. Any other rejection is a false alarm.
    """
    failed = next((step for step in report.steps if not step.ok), None)
    places = [_portable(problem.where) for problem in report.problems]
    messages = [
        f"{place}: {_portable(problem.what)}" for place, problem in zip(places, report.problems, strict=True)
    ]
    if failed is None:
        kind = PASSED
    elif program.missing:
        kind = MISSING
    elif messages and all(place == "rehearsal.toml" for place in places):
        kind = ANSWERS
    else:
        right = messages and all(any(key in text for key in program.rejected) for text in messages)
        kind = REJECTED if right else FALSE_ALARM
    explanation = program.false_alarm if kind == FALSE_ALARM else ""
    step = failed.name if failed else ""
    return Result(program.name, kind, report.resources, step, tuple(messages), explanation)


def _portable(text: str) -> str:
    """Return a text without the folders in which the program and its packages are on this machine."""
    return re.sub(r"/[^\s'\"]*/(?:program|site-packages)/", "", text)


def rehearse(folder: Path) -> Report:
    """Rehearse a program on the engine: preview, policies, apply, and a second preview."""
    from trainfleet.rehearsal.engine.find import find_engine
    from trainfleet.rehearsal.engine.sandbox import read_project
    from trainfleet.rehearsal.rehearse import RehearsalOptions
    from trainfleet.rehearsal.rehearse import rehearse as run

    os.environ.setdefault("USER", "somebody")  # as in a shell
    try:
        return run(read_project(folder, STACK), find_engine(lambda _: None), RehearsalOptions(until="no-op"))
    except TrainfleetError as error:
        return _failed("check", error.problems)


def check(folder: Path) -> Report:
    """Run a program without an engine, in a process of its own, and check what it registers.

    What only the cloud knows is unknown to the program, as in a first preview. It has no network.
    """
    _import_sdks()
    answer = folder.with_name("answer.json")
    child = os.fork()
    if child == 0:
        try:
            answer.write_text(json.dumps(_registered(folder)), encoding="utf-8")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = answer.read_text(encoding="utf-8") if answer.is_file() else ""
    found = json.loads(text or '{"problems": [["", "the program ended its process"]]}')
    if found["problems"]:
        return _failed("check", [Problem(where, what) for where, what in found["problems"]])
    return Report("", "", 0, [Step("check", "check")], resources=found["resources"])


@functools.cache
def _import_sdks() -> None:
    """Import what every program needs, once for all of them."""
    from trainfleet.rehearsal.simulation import check_harness, schema
    from trainfleet.rehearsal.simulation.other_packages import OTHER_MODELS

    assert check_harness.capture is not None
    for package in schema.packages().values():
        if package.name in OTHER_MODELS or package.name in _PACKAGES:
            importlib.import_module(package.module)


def _failed(step: str, problems: Sequence[Problem]) -> Report:
    return Report("", "", 0, [Step(step, step, ok=False, problems=list(problems))])


def _registered(folder: Path) -> dict[str, Any]:
    """Run the program in this process. Returns the number of resources and the problems."""
    import pulumi

    from trainfleet.rehearsal.engine import isolation
    from trainfleet.rehearsal.simulation.check_harness import capture
    from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
    from trainfleet.rehearsal.simulation.schema import packages

    document = yaml.safe_load((folder / "Pulumi.yaml").read_text(encoding="utf-8"))
    config = yaml.safe_load((folder / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8"))["config"]
    main = (folder / str(document.get("main") or ".")).resolve()
    os.environ |= {"USER": "somebody", **os.environ}
    isolation.hide_other_processes()
    isolation.without_network()
    os.chdir(main)
    sys.path.insert(0, str(main))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    # The project of a program without an engine is named `project`.
    own = f"{document['name']}:"
    settings = {name.replace(own, "project:"): str(text) for name, text in config.items()}

    def run() -> None:
        pulumi.runtime.set_all_config(settings)
        runpy.run_path(str(main / "__main__.py" if main.is_dir() else main), run_name="__main__")

    try:
        sent = capture(run)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is its result
        return {"resources": 0, "problems": [["program", f"{type(error).__name__}: {error}".strip()]]}
    known = packages()
    problems = [
        (f"{item.token} {item.name} {mistake.path}", f"{mistake.what} ({mistake.fix_with_source})")
        for item in sent
        if item.checked
        if (package := item.token.split(":", 1)[0]) in known and package in CLOUD_MODELS
        for mistake in CLOUD_MODELS[package].check(known[package], item.token, item.inputs)
        if not mistake.open
    ]
    return {"resources": len(sent), "problems": problems}


def tried(program: Program, mirror: Path, run: Callable[[Path], Report]) -> Result:
    """Return what `run` (`check` or `rehearse`) says of a program from a clone of its repository."""
    folder = Path(tempfile.mkdtemp(prefix="public-program-"))
    try:
        check_out(mirror / program.repository, program, folder / "program")
        return outcome(program, run(folder / "program"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_out(repository: Path, program: Program, folder: Path) -> None:
    """Write the program's files at its commit, as `pulumi new` does with a template, with its settings."""
    tree = _git(repository, "ls-tree", "-r", "-z", program.commit, f"{program.path}/").decode()
    if not tree:
        raise ValueError(f"{repository} has no {program.path} at {program.commit}")
    for entry in filter(None, tree.split("\0")):
        (mode, _, blob), name = entry.partition("\t")[0].split(), entry.partition("\t")[2]
        if not mode.startswith("100"):
            continue
        path = folder / Path(name).relative_to(program.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_git(repository, "cat-file", "blob", blob, absent=b""))
    _fill_in(folder)
    document = yaml.safe_load((folder / "Pulumi.yaml").read_text(encoding="utf-8"))
    asked = (document.get("template") or {}).get("config") or {}
    config: dict[str, str] = SETTINGS | {
        name if ":" in name else f"{document['name']}:{name}": row["default"]
        for name, row in asked.items()
        if isinstance(row, dict) and "default" in row
    }
    config |= {
        name if ":" in name else f"{document['name']}:{name}": text for name, text in program.config.items()
    }
    (folder / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump({"config": config}), encoding="utf-8")


def _fill_in(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and b"${PROJECT}" in (content := path.read_bytes()):
            content = content.replace(b"${PROJECT}", b"public").replace(b"${DESCRIPTION}", b"a program")
            path.write_bytes(content)


def _git(repository: Path, *arguments: str, absent: bytes | None = None) -> bytes:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
    if done.returncode and absent is not None:
        return absent
    if done.returncode:
        raise ValueError(done.stderr.decode().strip() or f"git {arguments[0]} failed")
    return done.stdout


def all_figures() -> dict[str, str]:
    """Return the figures of both ways to try the programs: without an engine, and on it."""
    on_engine = figures(results(ENGINE_RESULTS)).items()
    return figures(results()) | {f"{name}_on_engine": text for name, text in on_engine}


def figures(found: Mapping[str, Result]) -> dict[str, str]:
    """Return the figures that the pages quote."""
    count = {
        kind: sum(each.outcome == kind for each in found.values())
        for kind in (PASSED, REJECTED, FALSE_ALARM, MISSING, ANSWERS)
    }
    valid = count[PASSED] + count[FALSE_ALARM]
    return {
        "public_programs": str(valid + count[REJECTED] + count[ANSWERS]),
        "public_programs_passed": str(count[PASSED]),
        "public_programs_rejected": str(count[REJECTED]),
        "public_programs_false_alarms": str(count[FALSE_ALARM]),
        "public_programs_missing": str(count[MISSING]),
        "public_programs_needing_answers": str(count[ANSWERS]),
        "public_programs_share": f"{count[PASSED] / valid:.0%}".replace("%", " %") if valid else "none",
    }


def written(found: Mapping[str, Result]) -> str:
    """Return the text of results.toml."""
    with_ = ", ".join(f"{json.dumps(name)} = {json.dumps(version(name))}" for name in SDKS)
    command = "python -m tools.public_programs --mirror DIR --write (--engine: results_engine.toml)"
    lines = [f"# Written by `{command}`.", f"sdks = {{{with_}}}"]
    for each in sorted(found.values(), key=lambda row: row.program):
        lines += ["", "[[result]]", f"program = {json.dumps(each.program)}"]
        lines += [f"outcome = {json.dumps(each.outcome)}", f"resources = {each.resources}"]
        if each.problems:
            # No more than it takes to see what was reported: a page of rows to paste may follow.
            messages = ",\n".join(f"    {json.dumps(text[:300])}" for text in each.problems)
            lines += [f"step = {json.dumps(each.step)}", f"problems = [\n{messages},\n]"]
        if each.explanation:
            lines += [f"explanation = {json.dumps(each.explanation)}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.public_programs", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--mirror", type=Path, help="a folder with clones, as OWNER/NAME")
    parser.add_argument("--engine", action="store_true", help="rehearse on the engine")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="the list (default: programs.toml)")
    parser.add_argument(
        "--results", type=Path, help="the results (default: results.toml; results_engine.toml)"
    )
    parser.add_argument("--only", default="", help="only programs whose name contains this text")
    parser.add_argument("--write", action="store_true", help="write results.toml")
    options = parser.parse_args()
    options.results = options.results or (ENGINE_RESULTS if options.engine else RESULTS)
    found = results(options.results)
    if options.mirror:
        listed = list(programs(options.programs))
        found = {name: row for name, row in found.items() if name in {each.name for each in listed}}
        named = [each for each in listed if options.only in each.name]
        for program in named:
            row = found[program.name] = tried(program, options.mirror, rehearse if options.engine else check)
            print(f"{row.outcome:12} {row.resources:3}  {program.name}", flush=True)
            for text in row.problems if row.outcome != PASSED else ():
                print(f"    {row.step}: {text}", flush=True)
            if options.write:
                options.results.write_text(written(found), encoding="utf-8")
    for name, text in figures(found).items():
        print(f"{name} = {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

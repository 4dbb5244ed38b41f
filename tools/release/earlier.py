"""Writes what an earlier commit of this repository leaves behind, which tests read with today's code.

`python -m tools.release.earlier COMMIT` checks the commit out into a temporary folder and runs its own
command line there: it rehearses the development stack of each cloud, and trains a tiny model until it is
killed, then resumes it. Specs, recipes, outputs, states, the interrupted run with its checkpoint, and the
losses of the steps after it are in tests/release/earlier/COMMIT. Only what names this machine is changed: the
engine's positions in source files are dropped, and scratch folders renamed.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.release.checkout import git

ROOT = Path(__file__).resolve().parents[2]
STACKS = ("aws-dev", "gcp-dev", "azure-dev")
RUN, CHECKPOINT_EVERY, KILLED_AT, STEPS = "earlier", 8, 11, 16
SETTINGS = (
    "workload.model.width=16",
    "workload.data.source=corpus",
    'workload.data.glob="*.txt"',
    "workload.data.validation_share=0.2",
    "workload.data.test_share=0.2",
    "scaling.workers=1",
    f"steps={STEPS}",
    "log.every=1",
    f"validation.every={CHECKPOINT_EVERY}",
    "validation.samples=16",
    f"checkpoint.every={CHECKPOINT_EVERY}",
    "checkpoint.keep_last=1",
)
SCRATCH = "/scratch"
"""What the names of temporary folders become."""


def main() -> int:
    """Write the files of one commit. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.release.earlier", description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--to", type=Path, default=ROOT / "tests" / "release" / "earlier")
    given = parser.parse_args()
    commit = git(ROOT, "rev-parse", "--short=12", f"{given.commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="trainfleet-earlier-") as made:
        checkout = Path(made, "checkout")
        git(ROOT, "worktree", "add", "--quiet", "--detach", str(checkout), commit)
        try:
            write(checkout, Path(made), commit, given.to / commit)
        finally:
            git(ROOT, "worktree", "remove", "--force", str(checkout))
    return 0


def write(checkout: Path, scratch: Path, commit: str, folder: Path) -> None:
    """Replace `folder` with what the commit's command line writes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(checkout / "stacks", folder / "stacks", ignore=shutil.ignore_patterns("*.py", "*.json"))
    shutil.copytree(checkout / "recipes", folder / "recipes", ignore=shutil.ignore_patterns("*.py", "*.json"))
    date = git(checkout, "log", "-1", "--format=%cs")
    for stack in STACKS:
        rehearse(checkout, scratch, stack, date, folder)
        print(f"rehearsed {stack}", flush=True)
    losses = train(checkout, scratch, folder)
    record = {
        "commit": commit,
        "date": date,
        "written_by": f"python -m tools.release.earlier {commit}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": version("torch"),
        "checkpoint": CHECKPOINT_EVERY,
        "killed_at": KILLED_AT,
        "losses": losses,
    }
    (folder / "made.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def rehearse(checkout: Path, scratch: Path, stack: str, date: str, folder: Path) -> None:
    """Write the outputs and the state of a rehearsed stack."""
    outputs, kept = folder / "contracts" / f"{stack}.json", scratch / f"kept-{stack}"
    outputs.parent.mkdir(exist_ok=True)
    words = ["rehearse", stack, "--until", "apply", "--date", date, "--outputs", str(outputs)]
    run(checkout, checkout, *words, "--keep", str(kept))
    (state,) = kept.glob(f"*/state/.pulumi/stacks/*/{stack}.json")
    document = json.loads(state.read_text(encoding="utf-8"))
    for resource in document["checkpoint"]["latest"]["resources"]:
        for positions in ("sourcePosition", "stackTrace"):
            resource.pop(positions, None)
    (folder / "states").mkdir(exist_ok=True)
    text = json.dumps(document, indent=1).encode()
    (folder / "states" / f"{stack}.json.xz").write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def train(checkout: Path, scratch: Path, folder: Path) -> dict[str, float]:
    """Write a run that was killed, and return the losses of the steps after its checkpoint."""
    work = scratch / "train"
    corpus = work / "corpus"
    corpus.mkdir(parents=True)
    paragraphs = re.split(r"\n\s*\n", (checkout / "LICENSE").read_text(encoding="utf-8"))
    for number, paragraph in enumerate(paragraphs):
        (corpus / f"{number:02}.txt").write_text(paragraph + "\n", encoding="utf-8")
    words = ["launch", "lm-tiny", "--on", "torchrun", "--run", RUN, "--storage", "runs"]
    words += [word for each in SETTINGS for word in ("--set", each)]
    run(checkout, work, *words, fault=f"in-step:{KILLED_AT}")
    shutil.copytree(corpus, folder / "corpus")
    shutil.copytree(work / "runs" / RUN, folder / RUN, ignore=shutil.ignore_patterns(".lock"))
    for file in (folder / RUN / "tensorboard").iterdir():
        file.rename(file.with_name(file.name.replace(f".{platform.node()}.", ".host.")))
    for name in ("run.json", "LEASE"):
        file = folder / RUN / name
        file.write_text(anonymous(file.read_text(encoding="utf-8"), scratch), encoding="utf-8")
    run(checkout, work, *words)
    lines = (work / "runs" / RUN / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    return {str(row["step"]): row["loss"] for row in rows if row["step"] > CHECKPOINT_EVERY}


def anonymous(text: str, scratch: Path) -> str:
    """The text without the names of this machine and of temporary folders."""
    text = text.replace(str(scratch), SCRATCH)
    document: dict[str, Any] = json.loads(text)
    if "host" in document:
        document["host"] = "host"
    for launch in document.get("launches", ()):
        launch["machine"] = "machine"
    return json.dumps(document, indent=1) + "\n"


def run(checkout: Path, where: Path, *words: str, fault: str | None = None) -> None:
    """Run a command of the commit.

    Raises:
        subprocess.CalledProcessError: it failed, or did not die of `fault`.
    """
    environment = os.environ | {"PYTHONPATH": str(checkout), "TRAINFLEET_CACHE": str(where / "cache")}
    if fault:
        environment["TRAINFLEET_FAULT"] = fault
    command = [sys.executable, "-W", "ignore", "-m", "trainfleet", *words]
    done = subprocess.run(command, cwd=where, env=environment, check=False, stdout=subprocess.DEVNULL)
    if done.returncode != (-signal.SIGKILL if fault else 0):
        raise subprocess.CalledProcessError(done.returncode, command)


if __name__ == "__main__":
    sys.exit(main())

"""The demo of `make demo`: rehearse an AWS platform, launch a training from a platform's outputs, kill it
with SIGKILL, resume it, and write its report.

It replaces runs/demo. The exit code is 0 only if every part succeeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "runs" / "demo"
TRAINFLEET = str(Path(sys.executable).with_name("trainfleet"))
STACK = "aws-prod"
RECIPE = "recipes/lm-small.yaml"
LIMIT_S = 300
"""How long the demo waits for the run to reach the step at which it is killed."""

console = Console(highlight=False)


class DemoError(Exception):
    """Raised when a part of the demo fails."""


def main() -> int:
    """Run the four parts. Returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m tools.demo", description=(__doc__ or "").partition("\n\n")[0]
    ).parse_args()
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        rehearse()
        platform = local_platform()
        killed_at = train_until_killed(platform)
        result = resume(platform, killed_at)
    except DemoError as error:
        console.print(f"[bold red]demo: {error}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted")
        return 130
    summary(result, killed_at, time.monotonic() - started)
    return 0


def rehearse() -> None:
    """Part 1: rehearse the production platform on the real engine and a simulated AWS."""
    heading(1, f"an AWS platform on the real Pulumi engine, without an account: trainfleet rehearse {STACK}")
    call("rehearse", STACK, "--outputs", str(FOLDER / f"{STACK}.json"))


def local_platform() -> Path:
    """Part 2: rehearse the stack for this machine. Returns the file of its outputs, which name the run
    storage.
    """
    heading(2, "a platform on this machine, for its outputs: trainfleet rehearse local")
    outputs = FOLDER / "local.json"
    call(
        "rehearse", "local", "--outputs", str(outputs), "--set", f"storage.bucket_url=file://{FOLDER}/bucket"
    )
    return outputs


def train_until_killed(platform: Path) -> int:
    """Part 3: start the recipe with two workers and SIGKILL everything halfway. Returns the last step."""
    heading(
        3, f"two DDP workers train a language model, and are killed: trainfleet launch {RECIPE} --on local"
    )
    metrics = run_folder(platform) / "metrics.jsonl"
    process = subprocess.Popen(launch(platform), cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + LIMIT_S
    try:
        while last_step(metrics) < 110:
            if process.poll() is not None:
                raise DemoError(f"the training ended by itself with exit code {process.returncode}")
            if time.monotonic() > deadline:
                raise DemoError(f"the training did not reach step 110 in {LIMIT_S} s")
            time.sleep(0.1)
    finally:
        kill(process)
    step = last_step(metrics)
    console.print(
        f"[bold yellow]killed with SIGKILL after step {step}[/]: the launcher, Ray and both workers"
    )
    return step


def resume(platform: Path, killed_at: int) -> dict[str, object]:
    """Part 4: run the same command again, which resumes from the last checkpoint. Returns the result."""
    heading(4, "the same command again")
    done = subprocess.run(
        [*launch(platform), "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise DemoError(f"the resumed training ended with exit code {done.returncode}")
    result: dict[str, object] = json.loads(done.stdout)
    resumed = result.get("resumed_from")
    if not isinstance(resumed, int) or not 0 < resumed <= killed_at:
        raise DemoError(
            f"the run was killed after step {killed_at} but reports that it resumed from {resumed}"
        )
    return result


def run_folder(platform: Path) -> Path:
    """The folder of the run that `launch` starts."""
    from trainfleet.training.launch.request import Request
    from trainfleet.training.launch.supervise import resolve

    recipe, _ = resolve(Request(RECIPE, stacks=(str(platform),)), os.environ)
    return recipe.run_dir()


def launch(platform: Path) -> list[str]:
    """The command that is killed once and then run again."""
    return [TRAINFLEET, "launch", RECIPE, "--on", "local", "--platform", str(platform)]


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and all its descendants at once, so that none can clean up."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def last_step(metrics: Path) -> int:
    """The last training step in metrics.jsonl; 0 if there is none."""
    try:
        lines = metrics.read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError):  # an incomplete line, or one of another kind
            continue
    return 0


def call(*arguments: str) -> None:
    """Run a trainfleet command in this terminal."""
    done = subprocess.run([TRAINFLEET, *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise DemoError(f"`trainfleet {arguments[0]} {arguments[1]}` ended with exit code {done.returncode}")


def heading(number: int, text: str) -> None:
    """Print the heading of a part."""
    console.print(f"\n[bold blue]{number}/4[/] [bold]{text}[/]")


def summary(result: dict[str, object], killed_at: int, seconds: float) -> None:
    """Print the result."""
    console.print(f"\n[bold green]demo: done in {seconds:.0f} s[/]")
    console.print(f"  {STACK}: every step of the rehearsal was as expected (table above)")
    resumed = f"resumed from step {result['resumed_from']}, finished at step {result['step']}"
    console.print(f"  lm-small: killed after step {killed_at}, {resumed}")
    console.print(f"  report: {result['report']}")


if __name__ == "__main__":
    sys.exit(main())

"""The main job on real input, as `make demo` runs it: rehearse an AWS platform, launch a training from a
platform's
outputs, kill it with SIGKILL in the middle, resume it, and write its report.

Everything it makes lies under runs/demo, which each demo starts anew. Exit code 0 only if every part did what
it should.
"""

from __future__ import annotations

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
PATIENCE_S = 300
"""How long the demo waits for the run to reach the step at which it is killed."""

console = Console(highlight=False)


class DemoError(Exception):
    """Raised when a part of the demo did not do what it should."""


def main() -> int:
    """Run the four parts. Returns the exit code."""
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
    """Part 1: the production platform goes through the real engine over a simulated AWS."""
    heading(1, f"an AWS platform on the real Pulumi engine, without an account: trainfleet rehearse {STACK}")
    call("rehearse", STACK, "--outputs", str(FOLDER / f"{STACK}.json"))


def local_platform() -> Path:
    """Part 2: the stack for this machine, whose outputs say where runs are stored. Returns the outputs' file."""
    heading(2, "a platform on this machine, for its outputs: trainfleet rehearse local")
    outputs = FOLDER / "local.json"
    call(
        "rehearse", "local", "--outputs", str(outputs), "--set", f"storage.bucket_url=file://{FOLDER}/bucket"
    )
    return outputs


def train_until_killed(platform: Path) -> int:
    """Part 3: start the recipe with two workers and SIGKILL everything half way. Returns the last step that
    was logged.
    """
    heading(
        3, f"two DDP workers train a language model, and are killed: trainfleet launch {RECIPE} --on local"
    )
    metrics = run_folder(platform) / "metrics.jsonl"
    process = subprocess.Popen(launch(platform), cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while last_step(metrics) < 110:
            if process.poll() is not None:
                raise DemoError(f"the training ended by itself with exit code {process.returncode}")
            if time.monotonic() > deadline:
                raise DemoError(f"the training did not reach step 110 in {PATIENCE_S} s")
            time.sleep(0.1)
    finally:
        kill(process)
    step = last_step(metrics)
    console.print(
        f"[bold yellow]killed with SIGKILL after step {step}[/]: the launcher, Ray and both workers"
    )
    return step


def resume(platform: Path, killed_at: int) -> dict[str, object]:
    """Part 4: the same command again goes on from the last checkpoint. Returns what the run came to."""
    heading(4, "the same command again")
    done = subprocess.run(
        [*launch(platform), "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise DemoError(f"the resumed training ended with exit code {done.returncode}")
    result: dict[str, object] = json.loads(done.stdout)
    resumed = result.get("resumed_from")
    if not isinstance(resumed, int) or not 0 < resumed <= killed_at:
        raise DemoError(f"the run was killed after step {killed_at} but says that it resumed from {resumed}")
    return result


def run_folder(platform: Path) -> Path:
    """The folder of the run that `launch` starts, as the launcher itself resolves it."""
    from trainfleet.training.launch.request import Request
    from trainfleet.training.launch.supervise import resolve

    recipe, _ = resolve(Request(RECIPE, stacks=(str(platform),)), os.environ)
    return recipe.run_dir()


def launch(platform: Path) -> list[str]:
    """The launch that is killed once and then called again."""
    return [TRAINFLEET, "launch", RECIPE, "--on", "local", "--platform", str(platform)]


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a process and all that it started, children first known, so that nobody can clean up."""
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
    """The newest training step in metrics.jsonl; 0 while there is none."""
    try:
        lines = metrics.read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError):  # the line that is being written, or one of another kind
            continue
    return 0


def call(*arguments: str) -> None:
    """Run a trainfleet command on the user's own terminal."""
    done = subprocess.run([TRAINFLEET, *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise DemoError(f"`trainfleet {arguments[0]} {arguments[1]}` ended with exit code {done.returncode}")


def heading(number: int, text: str) -> None:
    """Announce a part."""
    console.print(f"\n[bold blue]{number}/4[/] [bold]{text}[/]")


def summary(result: dict[str, object], killed_at: int, seconds: float) -> None:
    """Say what was shown."""
    console.print(f"\n[bold green]demo: done in {seconds:.0f} s[/]")
    console.print(f"  {STACK}: every step of the rehearsal was as expected (table above)")
    console.print(
        f"  lm-small: killed after step {killed_at}, resumed from step {result['resumed_from']}, finished at step {result['step']}"
    )
    console.print(f"  report: {result['report']}")


if __name__ == "__main__":
    sys.exit(main())

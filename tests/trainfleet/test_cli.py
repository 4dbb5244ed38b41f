"""The command line as a whole: it is quick because it is lazy, every command has help with examples, mistakes
get words.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

from trainfleet.cli import COMMANDS

Call = Callable[..., subprocess.CompletedProcess[str]]
HEAVY = (
    "torch",
    "ray",
    "pulumi",
    "pulumi_aws",
    "pulumi_kubernetes",
    "grpc",
    "pandas",
    "pyarrow",
    "plotly",
    "torchmetrics",
)


def modules_after(*arguments: str) -> set[str]:
    """Names of all modules that a call of the command line has imported when it ends."""
    code = "import json, sys; from trainfleet.cli import app\ntry:\n app()\nexcept SystemExit: pass\nprint('\\n' + json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("spec", "--help"),
        ("machines", "--help"),
        ("train", "--help"),
        ("rehearse", "--help"),
    ],
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not modules_after(*arguments) & set(HEAVY)


def test_help_of_the_whole_imports_no_command() -> None:
    packages = ("infra", "training", "rehearsal", "policies", "local_cluster")
    commands = ("pydantic", *(f"trainfleet.{name}" for name in packages))
    assert not [name for name in modules_after("--help") if name.startswith(commands)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_is_there_and_its_help_has_examples(name: str, trainfleet: Call) -> None:
    module, _, attribute = COMMANDS[name].source.partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), typer.Typer)
    done = trainfleet(name, "--help")
    assert done.returncode == 0
    assert f"trainfleet {name}" in done.stdout.replace("Usage:", "", 1).split("\n", 3)[3], (
        "the help should show an example call"
    )


def test_a_misspelt_command_is_refused_with_the_nearest(trainfleet: Call) -> None:
    done = trainfleet("reherse")
    assert done.returncode == 2
    assert "rehearse" in done.stderr
    assert "Traceback" not in done.stderr

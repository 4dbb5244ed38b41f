"""Output of commands: Rich text on stdout or stderr for people, one JSON document on stdout for scripts.

`run(main)` is the only place where an exception becomes a message and an exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainfleet.errors import MissingToolError, Problem, TrainfleetError

if TYPE_CHECKING:
    from rich.console import Console

EXTRAS = {
    "botocore": "aws",
    "datasets": "hf",
    "espeakng_loader": "speech",
    "google": "gcp",
    "grpc": "review",
    "jinja2": "pulumi",
    "numpy": "train",
    "optuna": "tune",
    "peft": "hf",
    "plotly": "train",
    "pulumi": "review",
    "pulumi_aws": "aws",
    "pulumi_azure_native": "azure",
    "pulumi_gcp": "gcp",
    "pulumi_kubernetes": "review",
    "pulumi_policy": "review",
    "pyarrow": "train",
    "ray": "train",
    "requests": "azure",
    "safetensors": "hf",
    "sklearn": "vision",
    "kubernetes": "kuberay",
    "lightning_utilities": "train",
    "sky": "sky",
    "soundfile": "speech",
    "starlette": "ui",
    "tensorboard": "train",
    "tokenizers": "train",
    "torch": "train",
    "torchmetrics": "train",
    "transformers": "hf",
    "uvicorn": "ui",
}
"""The extra that installs a module."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 it ran and failed; 2 wrong input; 3 something is missing here; 130 interrupted."
)


def install_hint(extra: str) -> str:
    """How to install an extra. The package is not on the public index."""
    return f"`make setup` in a checkout, or pip install 'trainfleet[{extra}] @ git+<repository>'"


def out() -> Console:
    """A console on stdout, for results."""
    from rich.console import Console

    return Console(highlight=False)


def err() -> Console:
    """A console on stderr, for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(document: Any) -> None:
    """Write one JSON document to stdout, for `--json`."""
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
    sys.stdout.flush()


def print_error(error: TrainfleetError) -> None:
    """Write an error to stderr: the summary, then one line per problem."""
    console = err()
    console.print(f"[bold red]error:[/] {_escape(error.summary)}", soft_wrap=True)
    for problem in error.problems:
        where = f"[bold]{_escape(problem.where)}[/]: " if problem.where else ""
        fix = f" [green]-> {_escape(problem.fix)}[/]" if problem.fix else ""
        console.print(f"  {where}{_escape(problem.what)}{fix}", soft_wrap=True)


def run(main: Callable[[], Any]) -> int:
    """Call `main` and return its exit code: 0, the error's own, or 130 for Ctrl-C."""
    try:
        main()
    except TrainfleetError as error:
        print_error(error)
        return error.exit_code
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        if module == "trainfleet":
            raise
        extra = EXTRAS.get(module)
        fix = install_hint(extra) if extra else f"install the package that provides `{module}`"
        missing = MissingToolError(
            "a Python package that this command needs is not installed",
            [Problem(str(error.name), "is not installed", fix)],
        )
        print_error(missing)
        return missing.exit_code
    except KeyboardInterrupt:
        err().print("[yellow]interrupted[/]")
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return 0


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)

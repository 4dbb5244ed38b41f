"""Answers what the types of the importable Pulumi SDKs take: a type token per line, a JSON value per line.

Started as a file with an environment's packages in PYTHONPATH. It imports nothing else of this project. An
answer maps each input to whether it is required and to its type; it is null for a type that the SDK lacks.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any


def classes() -> dict[str, tuple[str, str]]:
    """Return module and class of every type. The first SDK of a name in sys.path counts."""
    found: dict[str, tuple[str, str]] = {}
    seen = set()
    for folder in map(Path, sys.path):
        for plugin in sorted(folder.glob("pulumi_*/pulumi-plugin.json")) if folder.is_dir() else ():
            if plugin.parent.name not in seen:
                seen.add(plugin.parent.name)
                text = (plugin.parent / "__init__.py").read_text()
                match = re.search(r'resource_modules="""(.*?)"""', text, re.S)
                for module in json.loads(match.group(1)) if match else []:
                    for token, name in module["classes"].items():
                        found.setdefault(token, (module["fqn"], name))
    return found


def inputs(fqn: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the inputs of a class by their wire names."""
    from pulumi import _types

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(fqn)
    cls = getattr(module, name)
    home = sys.modules[cls.__module__]
    args = next(
        (found for suffix in ("InitArgs", "Args") if (found := getattr(home, f"{name}{suffix}", None))), None
    )
    if args is None:
        return {}
    parameters = inspect.signature(args).parameters
    return {
        wire: {
            "required": parameters[python].default is inspect.Parameter.empty,
            "type": str(parameters[python].annotation),
        }
        for python, wire, _ in _types._py_properties(args)
        if python in parameters
    }


def main() -> None:
    """Answer until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    known = classes()
    for line in sys.stdin:
        token = line.strip()
        answer: Any = None
        if token in known:
            try:
                answer = inputs(*known[token])
            except Exception as error:  # noqa: BLE001 - a broken SDK is reported, not raised across processes
                answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

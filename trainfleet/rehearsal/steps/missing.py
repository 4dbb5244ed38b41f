"""Explains what a program needs and does not have: settings, packages, and outputs of other stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from trainfleet.console import install_hint
from trainfleet.errors import Problem
from trainfleet.rehearsal.accepted import FILE, Accepted, snippets

_DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "dotenv": "python-dotenv",
    "git": "gitpython",
    "jwt": "pyjwt",
    "OpenSSL": "pyopenssl",
}
_SDKS = {"pulumi_aws": "aws", "pulumi_gcp": "gcp", "pulumi_azure_native": "azure"}
"""The extras of the SDKs of the clouds, which `trainfleet[review]` does not have."""
_EXAMPLES = {"bool": "true", "int": "1", "float": "1.0", "object": "'{\"key\": 1}'"}


def settings(failure: dict[str, str]) -> list[Problem]:
    """Return one problem per missing setting, with the command that sets it."""
    return [
        Problem(
            each["where"],
            f"the setting `{key}` is missing",
            f"pulumi config set{' --secret' * each['secret']} {key} {_EXAMPLES.get(each['kind'], 'VALUE')}",
        )
        for key, each in json.loads(failure["message"]).items()
    ]


def packages(failure: dict[str, str]) -> list[Problem]:
    """Return one problem that names all modules which are not installed, with the command."""
    modules = [name for name in failure.get("missing", "").split(",") if name]
    names = [_DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in modules]
    several = len(modules) > 1
    extras = [_SDKS[name] for name in modules if name in _SDKS]
    sdk = f"{install_hint(','.join(extras))}, or " if extras else ""
    return [
        Problem(
            failure["where"],
            f"{', '.join(f'`{name}`' for name in modules)} {'are' if several else 'is'} not installed in the"
            " environment that runs Trainfleet, in which a rehearsed program runs",
            f"{sdk}pip install {' '.join(names)}",
        )
    ]


MORE: dict[str, Callable[[dict[str, str]], list[Problem]]] = {
    "MissingSettings": settings,
    "ModuleNotFoundError": packages,
}
"""Explanations of failures that are not a mistake in the program, by kind."""


def missing_stacks(reported: list[Problem], accepted: Accepted, referred: Path) -> list[Problem]:
    """Return one problem that names every stack which a program refers to and the rehearsal does not have.

    The engine reports the first one; `referred` has all of them, one a line.
    """
    known = {row.name for row in accepted.stacks}
    names = [
        name
        for name in dict.fromkeys(referred.read_text().splitlines() if referred.is_file() else ())
        if name not in known
    ]
    if not names or not any("unknown stack" in each.what for each in reported):
        return []
    rows = snippets(("stack", {"name": name, "outputs": {"key": "value"}}) for name in names)
    return [
        Problem(
            FILE,
            f"the outputs of other stacks are not known: {', '.join(names)}",
            f'give them, or name the program that has them (program = "../other"), as in:\n\n{rows}\n',
        )
    ]

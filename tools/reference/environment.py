"""docs/reference/environment.md: every environment variable that the code reads."""

from __future__ import annotations

from collections.abc import Mapping

from tools.reference.pages import header
from tools.reference.scan import PREFIX
from tools.reference.tables import code, table
from tools.reference.variables import GROUPS

RECIPE = """## Recipe keys

Every key of a recipe can be set by a variable: `TRAINFLEET_`, then the key in upper case with `__` between
its parts. Values are YAML. `TRAINFLEET_OPTIMIZER__LR=3e-4` sets `optimizer.lr`, `TRAINFLEET_STEPS=400` sets
`steps`. A variable takes precedence over the file, and a `key=value` argument over the variable.
[recipe.md](recipe.md) lists the keys.
"""

NOT_DOCUMENTED = {
    "ACCOUNT": "set by a manifest for the script in its pod",
    "NAMESPACE": "set by a manifest for the script in its pod",
    "SECRET": "set by a manifest for the script in its pod",
    "KEY": "set by a manifest for the script in its pod",
    **dict.fromkeys(
        (
            "AUDIENCE",
            "CA_NAME",
            "CLUSTER_DOMAIN",
            "CREATE_CA",
            "PORT",
            "RAY_SIGNER",
            "RAY_TLS_FOLDER",
            "SERVICE",
            "TRAINING_NAMESPACE",
        ),
        "set by a manifest for the signer of Ray's certificates, or for its client in a pod",
    ),
    "ACTIONS_ID_TOKEN_REQUEST_URL": "set by GitHub in a job that may request a token",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "set by GitHub in a job that may request a token",
    "GITLAB_CI": "set by GitLab in every job",
    "KUBERNETES_SERVICE_HOST": "set by Kubernetes in every pod",
    "KUBERNETES_SERVICE_PORT": "set by Kubernetes in every pod",
    "HOME": "the operating system's",
    "PATH": "the operating system's",
    "USER": "the operating system's",
    "PYENV_ROOT": "pyenv's; `make release` looks for interpreters there",
    "PYTHONPATH": "Python's; kept and extended",
    "UV_DEFAULT_INDEX": "uv's; kept if it is set",
}
"""Variables that the sources look up and that are not an interface of Trainfleet, with the reason."""


def markdown() -> str:
    """The page."""
    parts = [header("Environment variables"), RECIPE]
    for group in GROUPS:
        parts.append(f"## {group.title}\n")
        if group.text:
            parts.append(f"{group.text}\n")
        rows = [(code(each.name), each.purpose, each.read_by, each.default) for each in group.variables]
        parts.append(table(("Variable", "Purpose", "Read by", "Default"), rows))
    return "\n".join(parts)


def documented() -> set[str]:
    """The variables of the page."""
    return {each.name for group in GROUPS for each in group.variables}


def undocumented(found: Mapping[str, set[str]]) -> list[str]:
    """Variables that the sources read and the page lacks; tests and tools may read others' variables."""
    known = documented() | NOT_DOCUMENTED.keys()
    return [
        name
        for name, folders in found.items()
        if name not in known and (name.startswith(PREFIX) or folders - {"tests"})
    ]


def unread(found: Mapping[str, set[str]]) -> list[str]:
    """Variables of the page that are Trainfleet's own and that nothing reads."""
    return sorted(name for name in documented() - found.keys() if name.startswith(PREFIX))

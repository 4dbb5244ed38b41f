"""Writes a project's own tables from the package schemas of its provider plugins."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.rehearsal.knowledge.package_schema import from_schema
from trainfleet.rehearsal.simulation.knowledge_table import FOLDER, SHIPPED, Table, read_table, write_table
from trainfleet.rehearsal.simulation.schema import packages

TIMEOUT_S = 300.0


def schema_file(path: Path) -> dict[str, Any]:
    """Read a package schema from a file.

    Raises:
        InputError: the file cannot be read, or is not JSON.
    """
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError("the package schema cannot be read", [Problem(str(path), str(error))]) from error
    if not isinstance(given, dict):
        raise InputError("the package schema cannot be read", [Problem(str(path), "is not a JSON object")])
    return given


def plugin_schema(package: str) -> dict[str, Any]:
    """Return the schema of the plugin of the installed SDK's version, from `pulumi package get-schema`.

    Raises:
        InputError: the SDK of the package is not installed.
        MissingToolError: there is no `pulumi`, or it cannot get the plugin.
    """
    sdk = packages().get(package)
    if sdk is None:
        fix = f"installed are {', '.join(sorted(packages()))}"
        raise InputError("there is no SDK of this package", [Problem(package, "is not installed", fix)])
    pulumi = shutil.which("pulumi")
    fix = "install the Pulumi CLI, or pass a schema with --schema FILE"
    if pulumi is None:
        raise MissingToolError(
            "`pulumi package get-schema` is needed", [Problem("pulumi", "not on PATH", fix)]
        )
    name = f"{package}@{sdk.version}"
    try:
        done = subprocess.run(
            [pulumi, "package", "get-schema", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        given = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise MissingToolError("the plugin gives no schema", [Problem(name, str(error), fix)]) from error
    if not isinstance(given, dict):
        raise MissingToolError("the plugin gives no schema", [Problem(name, done.stderr.strip()[-400:], fix)])
    return given


def update(schema: Mapping[str, Any], origin: str, project: Path) -> tuple[Table, Path]:
    """Write the project's table of a package.

    Args:
        schema: the package schema.
        origin: where it is from, as the table says it.
        project: folder of the project; the table goes to `.trainfleet/knowledge/` in it.

    Returns:
        the table and its file.
    """
    shipped = SHIPPED / f"{schema.get('name')}.json"
    before = read_table(shipped) if shipped.is_file() else None
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    table = from_schema(schema, date=today, source=origin, before=before)
    file = project / FOLDER / f"{table.package}.json"
    write_table(table, file)
    return table, file

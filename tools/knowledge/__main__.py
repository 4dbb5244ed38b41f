"""Write the tables of trainfleet/rehearsal/simulation/knowledge/ from provider sources or package schemas.

    python -m tools.knowledge INPUTS.toml [--check]

INPUTS.toml has a section for each package to write (docs/knowledge.md):

    [aws]
    kind = "terraform"          # or schema, kubernetes, azure-native
    folder = "DIR"              # the provider's source; a file for `schema`
    module = "IMPORT_PATH"      # what the folder is to Go
    source = "owner/name"       # message in every row
    version = "6.58.0"
    date = "2026-08-05"
    names = "FILE"              # optional: the bridge's metadata with the Terraform name of each type
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tools.knowledge import azure, azure_models, kubernetes, terraform
from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.knowledge.package_schema import from_schema
from trainfleet.rehearsal.simulation.knowledge_table import SHIPPED, Row, Table, read_table, write_table
from trainfleet.rehearsal.simulation.schema import packages

READER = Path(__file__).with_name("goreader")
EVERY = {"aws": ("region",)}
"""AWS replaces any resource whose region changes (internal/provider of 6.x)."""
KINDS = ("terraform", "schema", "kubernetes", "azure-native")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.knowledge", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("inputs", type=Path, help="where the sources are (docs/knowledge.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table would change")
    arguments = parser.parse_args()
    wrong = []
    for package, given in tomllib.loads(arguments.inputs.read_text()).items():
        table = generated(package, given)
        file = SHIPPED / f"{package}.json"
        if arguments.check:
            with tempfile.TemporaryDirectory() as folder:
                written = Path(folder) / file.name
                write_table(table, written)
                if not file.is_file() or written.read_bytes() != file.read_bytes():
                    wrong.append(file.name)
        else:
            write_table(table, file)
            print(f"{file.name}: {len(table.types)} types, {file.stat().st_size / 1000:.0f} kB")
    for name in wrong:
        print(f"{name} is not what the sources say: run make knowledge", file=sys.stderr)
    return bool(wrong)


def generated(package: str, given: dict[str, Any]) -> Table:
    """Return the table of one package from its section of the inputs."""
    kind, sdk = given.get("kind"), packages().get(package)
    missing = [key for key in ("folder", "source", "version", "date") if key not in given]
    if kind not in KINDS or missing or sdk is None:
        message = f"needs kind ({', '.join(KINDS)}), {', '.join(missing) or 'and'} an installed SDK"
        raise InputError("the inputs are not complete", [Problem(f"[{package}]", message)])
    if kind == "schema":
        schema = json.loads(Path(given["folder"]).read_text())
        file = SHIPPED / f"{package}.json"
        before = read_table(file) if file.is_file() else None
        return from_schema(schema, date=given["date"], source=given["source"], before=before)
    rows: dict[str, Row]
    if kind == "terraform":
        found = terraform.read(go(given), sdk, _names(given), EVERY.get(package, ()))
        rows = found.rows
        lost = len(found.unresolved)
        print(f"{package}: {len(rows)} of {len(sdk.classes)} types; {lost} properties unresolved")
    elif kind == "kubernetes":
        rows = kubernetes.rows(go(given, kubernetes.VARIABLE), sdk)
    else:
        listed = f"{given['module']}/provider/pkg/gen"
        operations = azure_models.by_namespace(azure_models.read_pinned())
        force, never = (go(given, f"{listed}.{name}") for name in ("forceNewMap", "noForceNewMap"))
        rows = azure.rows(sdk, force, never, operations)
        known = sum("*" not in each.unclear for each in rows.values())
        print(f"{package}: the API's models have {known} of {len(rows)} types")
    every = EVERY.get(package, ())
    return Table(package, given["source"], given["version"], given["date"], sdk.version, rows, every)


def go(given: dict[str, Any], variable: str = "") -> Any:
    """Return what goreader reads from a source."""
    command = ["go", "run", ".", "-root", str(Path(given["folder"]).resolve()), "-module", given["module"]]
    if variable:
        command += ["-value", variable]
    done = subprocess.run(command, cwd=READER, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise InputError("the source cannot be read", [Problem(given["folder"], done.stderr[-500:])])
    return json.loads(done.stdout)


def _names(given: dict[str, Any]) -> dict[str, str]:
    """Return the Terraform name of each type, from the metadata of Pulumi's bridge."""
    if "names" not in given:
        return {}
    resources = json.loads(Path(given["names"]).read_text())["auto-aliasing"]["resources"]
    return {each["current"]: name for name, each in resources.items()}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))

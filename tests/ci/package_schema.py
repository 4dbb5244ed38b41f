"""What `pulumi package get-schema PACKAGE@VERSION` prints in the harness: a schema of the types of the shipped table.

A real one comes from a provider plugin, which needs a network.
"""

from __future__ import annotations

import json
import sys

from trainfleet.rehearsal.simulation.knowledge_table import SHIPPED, read_table

name, _, version = sys.argv[1].partition("@")
file = SHIPPED / f"{name}.json"
types = read_table(file).types if file.is_file() else {}
replaced = {token: [path for path in row.replace if path.isidentifier()] for token, row in types.items()}
resources = {
    token: {"inputProperties": {path: {"type": "string", "willReplaceOnChanges": True} for path in paths}}
    for token, paths in (replaced or {f"{name}:index:Thing": ["name"]}).items()
}
sys.stdout.write(json.dumps({"name": name, "version": version, "resources": resources, "types": {}}))

"""The tables of `trainfleet cluster status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def servers_table(document: dict[str, Any]) -> Table:
    from rich.table import Table

    ready = "ready" if document["ready"] else "not ready"
    title = [f"{document['context']}: {ready}, {document['memory_mib']} MiB"]
    title += document["not_ready"]
    table = Table(title="\n".join(title), title_justify="left")
    for heading in ("server", "version", "state", "starts", "MiB"):
        table.add_column(heading, justify="right" if heading in ("starts", "MiB") else "left")
    for row in document["servers"]:
        state = "[green]runs[/]" if row["running"] else "[red]stopped[/]"
        table.add_row(row["name"], row["version"], state, str(row["starts"]), str(row["memory_mib"]))
    return table


def nodes_table(document: dict[str, Any]) -> Table:
    """A row per node: what it does, its zone, and the devices that it offers."""
    from rich.table import Table

    table = Table()
    for heading in ("node", "state", "zone", "devices"):
        table.add_column(heading)
    for row in document["nodes"]:
        state = "[green]ready[/]" if row["ready"] else "[red]not ready[/]"
        if row["state"] in ("stopped", "cut off"):
            state = f"[red]{row['state']}[/]"
        devices = ", ".join(f"{resource}={count}" for resource, count in row["devices"].items())
        table.add_row(row["name"], state, row["zone"], devices)
    return table

"""The packages `command` and `docker`: nothing is executed, built or pulled; the report says so."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel
from trainfleet.rehearsal.simulation.values import digest


class CommandModel(ComputedModel):
    """A command ends at once without output. An answer in rehearsal.toml gives it one."""

    source = "pulumi-command provider/pkg/provider"

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:  # noqa: ARG002 - shared signature
        return {"stdout": "", "stderr": ""} if kind == "Command" else {}

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        return path[0] == "triggers" or (path[0] == "connection" and not token.endswith(":Command"))

    def knows_replacements(self, token: str) -> bool:  # noqa: ARG002 - shared signature
        return True

    def not_done(self, token: str) -> str:
        return (
            "the command is not executed, and its output is empty"
            if token.endswith("Command")
            else "nothing is copied"
        )


class DockerModel(ComputedModel):
    """Images have the digests of their names."""

    def name_property(self, token: str) -> str:  # noqa: ARG002 - shared signature
        return "name"

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:
        name = str(inputs.get("imageName") or inputs.get("name") or seed)
        sha = f"sha256:{digest(name)}"
        own = {
            "imageId": sha,
            "repoDigest": f"{name.split('@', maxsplit=1)[0].rsplit(':', 1)[0]}@{sha}",
            "imageName": name,
        }
        return own if kind in ("Image", "RemoteImage", "RegistryImage") else {}

    def not_done(self, token: str) -> str:
        return "the image is neither built nor pulled" if token.endswith("Image") else ""

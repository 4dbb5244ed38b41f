"""Apis: the Google APIs that a platform calls, enabled in its project."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

ALWAYS = (
    "artifactregistry",
    "binaryauthorization",
    "cloudkms",
    "compute",
    "container",
    # Image streaming, which every node pool enables.
    "containerfilesystem",
    # Scans images on push. The registry's own setting only follows this API, which is off by default.
    "containerscanning",
    "iam",
    "iamcredentials",
    "logging",
    "monitoring",
    "storage",
)


def services(spec: PlatformSpec) -> tuple[str, ...]:
    """The short names of the APIs that this platform needs."""
    names = list(ALWAYS)
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        names.append("secretmanager")
    if spec.budget:
        names += ["billingbudgets", "cloudbilling"]
    if shared := spec.storage.shared_filesystem:
        names += ["servicenetworking", "lustre" if shared.kind == "lustre" else "file"]
    return tuple(sorted(names))


class Apis(PlatformComponent):
    """The APIs of a platform."""

    TYPE = "trainfleet:gcp:Apis"

    def __init__(self, spec: PlatformSpec, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "apis", opts)
        self.ready: list[pulumi.Resource] = [self._service(name) for name in services(spec)]
        self.register_outputs({})

    def _service(self, name: str) -> gcp.projects.Service:
        what = f"api-{name}"
        return gcp.projects.Service(
            self.name(what),
            service=f"{name}.googleapis.com",
            # NOTE: disabling an API deletes what other stacks of the project created with it.
            disable_on_destroy=False,
            disable_dependent_services=False,
            opts=self.options(),
        )

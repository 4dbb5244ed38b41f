"""The options that launchers share. Each launcher has a model of its own; a field is an option."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

When = Literal["auto", "always", "never"]
"""When something optional is done; auto: the launcher decides."""


class LaunchOptions(BaseModel):
    """The options of a launcher, other than those that every launcher has. A field's title is its flag."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def flag(cls, name: str) -> str:
        """The command line flag of a field."""
        return cls.model_fields[name].title or f"--{name.replace('_', '-')}"

    @property
    def follows_only(self) -> bool:
        """Whether the launch follows a run of another launch, which it must neither stop nor delete."""
        return False

    @property
    def followed_launch(self) -> str | None:
        """The launch that it follows, if it follows one of another launcher."""
        return None

    def place(self) -> dict[str, str]:
        """What run.json keeps, so that `trainfleet runs` finds the run."""
        return {}


class RemoteOptions(LaunchOptions):
    """The options of every launcher that runs on other machines."""

    image: str | None = None
    """The container image; None: the platform's."""
    pool: str | None = None
    """The node pool that trains; None: the cheapest that fits."""
    detach: bool = False
    within_s: float = Field(default=1800.0, title="--within")
    """How long the run may wait for its machines."""


class KubernetesOptions(RemoteOptions):
    """The options of the launchers that create pods."""

    context: str | None = None
    """A context of the kubeconfig, for a cluster that no stack describes."""
    namespace: str | None = None
    from_secrets: tuple[str, ...] = Field(default=(), title="--from-secret")
    pod_template: str | None = None
    """A file with patches of the run's pods."""
    priority: str | None = None
    """The priority class of the run; None: the middle one of the platform."""
    workload_check: When = "auto"
    """When a pod without GPUs validates the workload before the run starts; auto: if the run has GPUs."""

    def place(self) -> dict[str, str]:
        """The context and namespace, if given."""
        found = {"context": self.context, "namespace": self.namespace}
        return {key: value for key, value in found.items() if value}

"""Named: what the specs of a platform and of a bootstrap have in common. Components need no more of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Named(Protocol):
    """What every spec says of its resources: a name, where they are and who owns them."""

    @property
    def name(self) -> str:
        """The first part of every resource's name."""

    @property
    def region(self) -> str:
        """Region of the cloud."""

    @property
    def account(self) -> str:
        """Who pays: account, project or subscription."""

    @property
    def owner(self) -> str:
        """E-mail address of the team that owns the resources."""

    @property
    def environment(self) -> str:
        """dev, staging or prod."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Additional tags."""

    @property
    def production(self) -> bool:
        """Whether data and keys are protected and kept on destroy."""

"""A changed resource of a diff: what happens to it, its properties, and what is lost.

Values are ready for display: secrets are `[secret]`, values unknown before the apply are UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainfleet.rehearsal.diff.data_loss import Loss

UNKNOWN = "known after apply"
SECRET = "[secret]"


class Verb(StrEnum):
    """What happens to a resource."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"


@dataclass(frozen=True)
class Property:
    """A property with its old and new value; None means absent."""

    path: str
    old: Any
    new: Any
    forces: bool = False


@dataclass(frozen=True)
class Change:
    """A changed resource."""

    verb: Verb
    urn: str
    token: str
    name: str
    properties: tuple[Property, ...] = ()
    forced_by: tuple[str, ...] = ()
    """Properties that force the replacement."""
    loss: Loss | None = None
    """What is lost with the old resource (replacements and deletions), or by an update that replaces what is
    behind it, such as the nodes of a pool.
    """
    protected: bool = False
    """Pulumi refuses to replace or delete it until the protection is removed."""
    kept: bool = False
    """The old resource stays in the cloud, outside the stack (retain on delete)."""
    delete_first: bool = False
    """The old resource is deleted before the new one is created."""
    may_replace: tuple[str, ...] = ()
    """Properties of an update of which no rule tells whether the provider replaces the resource instead."""
    at_stake: Loss | None = None
    """What is lost if an update that may replace does replace; None if that is not known either."""

    @property
    def uncertain(self) -> bool:
        """Whether the update may turn out to be a replacement that loses something."""
        return bool(self.may_replace) and (self.at_stake is None or self.at_stake.loud)

    @property
    def destructive(self) -> bool:
        """Whether something is lost that a later apply does not restore."""
        if self.verb is Verb.UPDATE:
            return self.loss is not None and self.loss.loud
        return self.verb in (Verb.REPLACE, Verb.DELETE) and (self.loss is None or self.loss.loud)

    @property
    def type(self) -> str:
        """The type token without the module's file name, for example aws:s3:Bucket."""
        package, module, kind = (*self.token.split(":", 2), "", "")[:3]
        module = module.split("/")[0]
        return ":".join(part for part in (package, module, kind) if part and part != "index")

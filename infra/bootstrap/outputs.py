"""The outputs of a bootstrap stack, which become CI variables of the repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi


@dataclass(frozen=True, kw_only=True)
class BootstrapOutputs:
    """What CI needs to know of an account. Nothing of it is a secret.

    Attributes:
        state_url: what `pulumi login` takes (STATE_URL).
        secrets_provider: what `pulumi stack init --secrets-provider` takes (SECRETS_PROVIDER).
        plan_identity: what the login step of a pull request takes (PLAN_IDENTITY).
        apply_identity: what the login step of an apply takes (APPLY_IDENTITY).
        break_glass_identity: what a named person assumes when CI cannot apply.
        others: what only this cloud has, by the output's name.
    """

    state_url: pulumi.Input[str]
    secrets_provider: pulumi.Input[str]
    plan_identity: pulumi.Input[str]
    apply_identity: pulumi.Input[str]
    break_glass_identity: pulumi.Input[str] | pulumi.Output[str | None]
    others: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)

    def exports(self) -> Mapping[str, pulumi.Input[str] | pulumi.Output[str | None]]:
        """The stack's outputs by name."""
        return {
            "stateUrl": self.state_url,
            "secretsProvider": self.secrets_provider,
            "planIdentity": self.plan_identity,
            "applyIdentity": self.apply_identity,
            "breakGlassIdentity": self.break_glass_identity,
            **self.others,
        }

"""A real deployment inside the simulated cloud: its outputs stay, and unreadable values are not changes.

Set on a `Cloud` whose resources come from a stack's export, to preview a program on what is deployed.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainfleet.rehearsal.simulation.aws.ids import ACCOUNT
from trainfleet.rehearsal.simulation.azure.ids import SUBSCRIPTION
from trainfleet.rehearsal.simulation.pulumi_values import plain, texts

HIDDEN = "trainfleet-hidden-secret"
"""The placeholder of a secret that is encrypted in the export."""
_OWNERS = (
    (ACCOUNT, re.compile(r"arn:aws[a-z-]*:[^:]*:[^:]*:(\d{12}):")),
    (SUBSCRIPTION, re.compile(r"/subscriptions/([0-9a-f-]{36})/")),
)


@dataclass(frozen=True)
class Deployed:
    """What the simulated providers know of a real deployment."""

    opaque: tuple[str, ...] = (HIDDEN,)
    """Placeholders of secrets whose values are not known, in the state or in the settings."""
    accounts: Mapping[str, str] = field(default_factory=dict)
    """The real account or subscription for each simulated one."""

    def readable(self, old: Any, new: Any) -> Any:
        """Return the plain old value, with the new one wherever either side is not known.

        Args:
            old: plain inputs in the state.
            new: plain inputs of the program.
        """
        if self._hides(old) or self._hides(new):
            return new
        if isinstance(old, dict) and isinstance(new, dict):
            return {
                key: self.readable(value, new[key]) if key in new else value for key, value in old.items()
            }
        if isinstance(old, list) and isinstance(new, list):
            return [
                self.readable(value, new[index]) if index < len(new) else value
                for index, value in enumerate(old)
            ]
        return old

    def _hides(self, value: Any) -> bool:
        return isinstance(value, str) and any(text in value for text in self.opaque)

    def with_defaults(
        self,
        given: dict[str, Any],
        inputs: dict[str, Any],
        old: dict[str, Any],
        declared: Container[str],
        name: str,
    ) -> dict[str, Any]:
        """Return checked inputs with what the real provider added to them earlier.

        That is the name and the defaults that it chose, and properties that no program can set, such as
        `tagsAll` of AWS.

        Args:
            given: the program's inputs.
            inputs: the inputs after the simulated provider's check.
            old: the inputs in the state.
            declared: the names of the inputs in the SDK.
            name: the property with the physical name.
        """
        marked = (name, *(old.get("__defaults") or ()))
        kept = {
            key: value
            for key, value in old.items()
            if key not in given and not key.startswith("__") and (key in marked or key not in declared)
        }
        below = {key: _with_defaults(value, old.get(key)) for key, value in inputs.items() if key not in kept}
        marks = {"__defaults": old["__defaults"]} if "__defaults" in old else {}
        return {**below, **kept, **marks}

    def outputs(
        self, old: Mapping[str, Any], new: dict[str, Any], inputs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the outputs of an update: what the program does not set stays as it is deployed."""
        return new | {key: value for key, value in old.items() if key not in inputs}

    def answer(self, answer: Any) -> Any:
        """Return the answer to a function with the real account in place of the simulated one."""
        text = json.dumps(answer)
        for simulated, real in self.accounts.items():
            text = text.replace(simulated, real)
        return json.loads(text)


def _with_defaults(value: Any, old: Any) -> Any:
    if isinstance(value, dict) and isinstance(old, dict):
        kept = {key: old[key] for key in old.get("__defaults") or () if key not in value and key in old}
        return {**{key: _with_defaults(item, old.get(key)) for key, item in value.items()}, **kept}
    if isinstance(value, list) and isinstance(old, list) and len(value) == len(old):
        return [_with_defaults(item, earlier) for item, earlier in zip(value, old, strict=True)]
    return value


def deployed(resources: Iterable[Mapping[str, Any]], stand_ins: Iterable[str]) -> Deployed:
    """Return what is known of the deployed resources.

    Args:
        resources: the resources of the export, with secrets wrapped.
        stand_ins: the texts that replace encrypted settings.
    """
    outputs = [text for resource in resources for text in texts(plain(resource.get("outputs") or {}))]
    accounts = {}
    for simulated, pattern in _OWNERS:
        seen = Counter(match for text in outputs for match in pattern.findall(text))
        if seen:
            accounts[simulated] = seen.most_common(1)[0][0]
    plain_texts = [HIDDEN, *stand_ins]
    coded = [base64.b64encode(text.encode()).decode() for text in plain_texts]
    return Deployed((*plain_texts, *coded), accounts)

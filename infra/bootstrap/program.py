"""The bootstrap program: what CI needs in one account. A person applies it once, with their own login."""

from __future__ import annotations

from importlib import import_module

import pulumi

from trainfleet.errors import TrainfleetError
from trainfleet.infra.bootstrap.outputs import BootstrapOutputs
from trainfleet.infra.bootstrap.schema import parse_bootstrap


def run() -> None:
    """Build what the selected stack declares.

    Raises:
        RunError: the stack's spec is invalid. The engine prints its text without a traceback.
    """
    try:
        data = pulumi.Config("trainfleet").require_object("bootstrap")
        spec = parse_bootstrap(data, f"Pulumi.{pulumi.get_stack()}.yaml")
    except (TrainfleetError, pulumi.ConfigMissingError, pulumi.ConfigTypeError) as error:
        raise pulumi.RunError(str(error)) from error
    outputs: BootstrapOutputs = import_module(f"trainfleet.infra.bootstrap.{spec.cloud}.build").build(spec)
    for name, value in outputs.exports().items():
        pulumi.export(name, value)

"""The stack's configuration, whichever way the engine passes it to a policy pack.

Pulumi 3.200 sets PULUMI_CONFIG before it starts a pack. Newer engines (3.274 does) start the pack without it
and call ConfigureStack afterwards, of which pulumi_policy 1.21 keeps the tags only. Without the configuration
every policy is mandatory and no exception is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
from pulumi_policy import policy


def read_when_configured(configured: Callable[[], None]) -> None:
    """Set Pulumi's configuration from ConfigureStack, and call `configured` after that.

    The engine asks for the levels of the policies only then.
    """
    servicer: Any = policy._PolicyAnalyzerServicer  # the package has no public hook
    keep_tags = servicer.ConfigureStack

    def configure_stack(self: Any, request: Any, context: Any) -> Any:
        pulumi.runtime.set_all_config(dict(request.config), list(request.config_secret_keys))
        configured()
        return keep_tags(self, request, context)

    servicer.ConfigureStack = configure_stack

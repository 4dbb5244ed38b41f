"""docs/reference/policies.md: the policies, by the generator of `trainfleet policies --markdown`."""

from __future__ import annotations

from tools.reference.pages import adopt


def markdown() -> str:
    """The page."""
    from trainfleet.policies.engine.document import markdown as policies

    return adopt(policies())

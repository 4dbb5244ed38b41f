"""torchmetrics' `Metric` without importing transformers, which torchmetrics imports for text generation
metrics.

This saves about 6 CPU seconds per worker start. NOTE: it must be the first import of torchmetrics in a
process. A user who needs those metrics imports torchmetrics first, and then nothing is hidden.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def _not_installed(package: str) -> Iterator[None]:
    """Make torchmetrics' check for optional packages report `package` as missing."""
    from lightning_utilities.core.imports import RequirementCache

    test = getattr(RequirementCache, "_check_requirement", None)
    if test is None or package in sys.modules or "torchmetrics" in sys.modules:
        yield
        return

    def check(self: Any) -> None:
        if str(self.requirement).startswith(package):
            self.available, self.message = False, f"{package} is left out here"
        else:
            test(self)

    RequirementCache._check_requirement = check  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        RequirementCache._check_requirement = test  # type: ignore[method-assign]  # as it was


with _not_installed("transformers"):
    from torchmetrics import Metric

__all__ = ["Metric"]

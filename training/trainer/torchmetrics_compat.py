"""torchmetrics' `Metric` without two imports of torchmetrics that no metric here needs: transformers, for
text generation metrics, and scipy.signal, to which it adds a removed name.

This saves about 6 and 0.5 CPU seconds per worker start. NOTE: it must be the first import of torchmetrics in
a process. A user who needs those metrics of text generation imports torchmetrics first, and then nothing is
hidden.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_SIGNAL = "scipy.signal"


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


@contextlib.contextmanager
def _without_scipy_signal() -> Iterator[None]:
    """Let torchmetrics find the name `scipy.signal.hamming`, which it adds for SRMRpy (the metric of speech
    reverberation, which needs the package gammatone), without importing the module. Later imports of it are
    those of the real module.
    """
    if _SIGNAL in sys.modules or importlib.util.find_spec("gammatone") is not None:
        yield
        return
    empty = ModuleType(_SIGNAL)
    vars(empty)["hamming"] = None  # torchmetrics asks only whether it exists
    sys.modules[_SIGNAL] = empty
    try:
        yield
    finally:
        if sys.modules.get(_SIGNAL) is empty:
            del sys.modules[_SIGNAL]
        if (scipy := sys.modules.get("scipy")) is not None and vars(scipy).get("signal") is empty:
            del vars(scipy)["signal"]  # its __getattr__ imports the real one


with _not_installed("transformers"), _without_scipy_signal():
    from torchmetrics import Metric

__all__ = ["Metric"]

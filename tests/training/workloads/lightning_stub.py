"""The part of `lightning.pytorch.LightningModule` that a module sees without a Trainer, for tests where
Lightning is not installed: its members, hooks that do nothing, and `log`, which drops its values.

Its `device` is Lightning's own, from lightning_fabric.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from lightning_fabric.utilities.device_dtype_mixin import _DeviceDtypeModuleMixin

from trainfleet.training.workloads.lightning.unsupported import HOOKS, MEMBERS

OF_LIGHTNING = "lightning.pytorch.core.module"


def _nothing(*_: Any, **__: Any) -> None: ...


class LightningModule(_DeviceDtypeModuleMixin):
    """Has every name that a module can override or use."""

    def __init__(self) -> None:
        super().__init__()
        self._automatic_optimization = True

    @property
    def automatic_optimization(self) -> bool:
        return self._automatic_optimization

    @automatic_optimization.setter
    def automatic_optimization(self, value: bool) -> None:
        self._automatic_optimization = value

    training_step = validation_step = test_step = predict_step = configure_optimizers = _nothing


for _name in HOOKS:
    setattr(LightningModule, _name, _nothing)
for _name in MEMBERS:
    setattr(LightningModule, _name, property(lambda self: 0))
LightningModule.__module__ = OF_LIGHTNING


def lightning() -> ModuleType:
    """The installed package, or one that has this class only."""
    try:
        import lightning as installed
    except ModuleNotFoundError:
        installed = ModuleType("lightning")
        installed.LightningModule = LightningModule  # type: ignore[attr-defined]  # as `import lightning as L`
    return installed

"""The top-level import name `training` of earlier releases, for user code, for one release.

`install` adds a finder at the end of `sys.meta_path`, so a user's own package `training` always wins.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OLD = "training"
NEW = "trainfleet.training"
MOVED = {
    "data.preparation": "data.prepare",
    "workloads.layout": "workloads.model_folder",
    "workloads.lm": "workloads.lm.workload",
    "workloads.lm_settings": "workloads.lm.settings",
    "workloads.speech": "workloads.speech.workload",
    "workloads.speech_settings": "workloads.speech.settings",
    "workloads.vision": "workloads.vision.workload",
    "workloads.vision_models": "workloads.vision.models",
    "workloads.vision_settings": "workloads.vision.settings",
}
"""Modules that user code may import and that have another path below the new name."""


class _AliasLoader(Loader):
    """Loads a module that has the attributes of `target`."""

    def __init__(self, target: str) -> None:
        self.target = target

    def exec_module(self, module: ModuleType) -> None:
        target = importlib.import_module(self.target)
        # An alias must not have the target's `__path__`, or Python would load its submodules twice.
        vars(module).update(
            {name: value for name, value in vars(target).items() if not name.startswith("__")}
        )
        vars(module)["__getattr__"] = lambda name: getattr(target, name)


class OldNameFinder(MetaPathFinder):
    """Finds `training` and its submodules below the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        top, _, below = fullname.partition(".")
        if top != OLD or (below and not _is_alias(sys.modules.get(OLD))):
            return None
        moved = MOVED.get(below, below)
        found = importlib.util.find_spec(f"{NEW}.{moved}" if moved else NEW)
        if found is None:
            return None
        if not below:
            text = f"`import {OLD}` is deprecated and will be removed: import `{NEW}` instead"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _AliasLoader(found.name), is_package=is_package)


def install() -> None:
    """Make the old name importable; does nothing the second time."""
    if not any(isinstance(finder, OldNameFinder) for finder in sys.meta_path):
        sys.meta_path.append(OldNameFinder())


def _is_alias(module: ModuleType | None) -> bool:
    return module is not None and isinstance(module.__loader__, _AliasLoader)

"""Prints the policies of a CrossGuard pack as JSON: name, level and settings.

Started as a file, in the pack's folder, with the pack's checkout first in PYTHONPATH and the stack's
settings in PULUMI_CONFIG. It imports nothing else of this project.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any


def policies(program: Path) -> list[dict[str, Any]]:
    """Return the policies that a pack's program would serve.

    Raises:
        Exception: whatever the program raises.
    """
    import pulumi_policy

    found: list[dict[str, Any]] = []

    class Recorder:
        """Takes the place of PolicyPack, which would serve until the process is stopped."""

        def __init__(
            self,
            _name: str,
            policies: list[Any],
            enforcement_level: Any = None,
            initial_config: dict[str, Any] | None = None,
            **_: Any,
        ) -> None:
            for policy in policies:
                configured = (initial_config or {}).get(policy.name)
                settings = configured if isinstance(configured, dict) else {}
                own = settings.get("enforcementLevel") or (None if settings else configured)
                level = own or policy.enforcement_level or enforcement_level
                schema = policy.config_schema
                found.append(
                    {
                        "name": policy.name,
                        "level": str(getattr(level, "value", level) or "advisory"),
                        "settings": dict(schema.properties or {}) if schema is not None else {},
                        "values": {
                            name: value for name, value in settings.items() if name != "enforcementLevel"
                        },
                    }
                )

    vars(pulumi_policy)["PolicyPack"] = Recorder
    sys.argv = [str(program)]
    sys.path[0] = str(program if program.is_dir() else program.parent)
    runpy.run_path(str(program), run_name="__main__")
    return found


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    answers.write(json.dumps(policies(Path(sys.argv[1])), default=str))

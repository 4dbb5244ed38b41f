"""Updates the golden losses: `python -m tests.training.golden --refresh [NAME ...]`. Without `--refresh`, it
only prints the differences.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.training.golden import FOLDER, GOLDEN, read, write, write_text
from tests.training.training_runs import metric_values, rows_of


def main() -> int:
    from trainfleet.training.trainer.context import RunContext
    from trainfleet.training.trainer.loop import train

    parser = argparse.ArgumentParser(prog="python -m tests.training.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GOLDEN)} (default: all)")
    parser.add_argument("--refresh", action="store_true", help="write the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainfleet-golden-") as temp:
        text = write_text(Path(temp) / "text")
        for name in options.names or GOLDEN:
            folder = Path(temp) / name
            train(GOLDEN[name].load(text), RunContext(folder, cache=Path(temp) / "cache"))
            losses = metric_values(rows_of(folder), "loss")
            before = read(name) if (FOLDER / f"{name}.txt").exists() else []
            most = max(
                (abs(new - old) / abs(old) for new, old in zip(losses, before, strict=False)),
                default=float("nan"),
            )
            sys.stdout.write(
                f"{name}: {len(losses)} steps, {losses[0]:.4f} to {losses[-1]:.4f}; at most {most:.1e} from the golden losses\n"
            )
            if options.refresh:
                write(name, losses)
    return 0


if __name__ == "__main__":
    sys.exit(main())

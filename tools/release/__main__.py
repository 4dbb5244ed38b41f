"""Builds and checks a release in dist/: `make release`.

The version is that of the commit's tag (`make tag`). Refuses a checkout whose files have another one, or
that has changes, unless `--draft`. Builds the
sdist and the wheel twice and compares the bytes, checks contents and metadata, uses both in clean
environments with every supported Python, writes the bill of materials, checks every package's licence, and
writes SHA256SUMS and a provenance statement. Nothing is published.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.release import build, environments
from tools.release.checkout import checkout_problems, git, release_version
from tools.release.licences import licence_problems
from tools.release.sbom import LOCK, write_sbom
from trainfleet.errors import Problem, TrainfleetError

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Build the release. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.splitlines()[0])
    parser.add_argument("--draft", action="store_true", help="build although the checkout is not a release")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder, which is replaced")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=environments.supported(ROOT),
        help="a Python that need not be installed here; it is named in the provenance as not tested",
    )
    given = parser.parse_args()
    try:
        release(ROOT, given.to, draft=given.draft, without=given.without)
    except TrainfleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} failed\n{error.stderr}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, folder: Path, draft: bool, without: Sequence[str] = ()) -> None:
    """Build a release into a folder, which appears when everything is in it.

    Raises:
        ReleaseError: it must not be published.
    """
    _require(checkout_problems(root), "the checkout is not a release", only_report=draft)
    pythons = {each: environments.find(each) for each in environments.supported(root)}
    _require(environments.missing_problems(pythons, without), "not every supported Python can be tested")
    version, epoch = release_version(root), int(git(root, "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="trainfleet-release-") as made:
        first, second = Path(made, "first"), Path(made, "second")
        found = build.build(root, first, epoch)
        again = build.build(root, second, epoch)
        print(f"built {found.sdist.name} and {found.wheel.name}, twice", flush=True)
        pairs = ((found.sdist, again.sdist), (found.wheel, again.wheel))
        differing = [one.name for one, other in pairs if one.read_bytes() != other.read_bytes()]
        problems = [Problem(name, "has other bytes in a second build") for name in differing]
        problems += build.content_problems(found, build.package_files(root))
        problems += build.metadata_problems(found, version)
        _require(problems, "the distributions are not right")
        measured, problems = environments.check_all(root, found, pythons, Path(made, "environments"))
        _require(problems, "the distributions do not work in a clean environment")
        for python in (each for each, path in pythons.items() if path is None):
            print(f"  Python {python}: NOT TESTED, it is not installed here", flush=True)
        components = write_sbom(first / f"trainfleet-{version}.cdx.json", version)
        _require(licence_problems(components), "a licence is neither accepted nor explained")
        print(
            f"{len(components)} packages in the bill of materials, each with an accepted licence", flush=True
        )
        _write_provenance(root, first, version, measured, pythons)
        _write_sums(first)
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(first, folder)
    print(f"wrote {folder}: {', '.join(sorted(each.name for each in folder.iterdir()))}")


def _require(problems: Sequence[Problem], summary: str, only_report: bool = False) -> None:
    if not problems:
        return
    error = build.ReleaseError(summary, list(problems))
    if not only_report:
        raise error
    print(f"draft: {error}", file=sys.stderr)


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write_provenance(
    root: Path,
    folder: Path,
    version: str,
    measured: Sequence[environments.Installed],
    pythons: Mapping[str, Path | None],
) -> None:
    """An in-toto statement with a SLSA provenance predicate, unsigned: what was built, from which commit."""
    statement: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": each.name, "digest": {"sha256": digest(each)}} for each in sorted(folder.iterdir())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"version": version},
                "internalParameters": {
                    "testedPythons": sorted({each.python for each in measured}),
                    "untestedPythons": [each for each, path in pythons.items() if path is None],
                },
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": git(root, "rev-parse", "HEAD")}},
                    {"name": "requirements.lock", "digest": {"sha256": digest(root / "requirements.lock")}},
                    {"name": LOCK.name, "digest": {"sha256": digest(LOCK)}},
                ],
            },
            "runDetails": {"builder": {"id": "make release"}},
        },
    }
    (folder / "provenance.json").write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")


def _write_sums(folder: Path) -> None:
    lines = [f"{digest(each)}  {each.name}\n" for each in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""The arguments and options of `trainfleet rehearse`, and the checks of their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainfleet.rehearsal.on_cluster.cluster_target import Target
    from trainfleet.rehearsal.rehearse import RehearsalOptions

Subject = Annotated[
    str, typer.Argument(metavar="STACK|DIR", help="A stack of this project, or a folder with a Pulumi.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")]
Resources = Annotated[
    Path | None,
    typer.Option(
        help="Write each planned resource as a line of JSON (type, name, URN, inputs; secrets masked)."
    ),
]
Outputs = Annotated[
    Path | None,
    typer.Option(help="Write the stack's outputs as JSON (the platform document, if there is one)."),
]
Keep = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the engine's state and logs in a folder below DIR."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the platform spec for this rehearsal."),
]
PolicyPacks = Annotated[
    list[Path] | None, typer.Option(help="A policy pack to apply (default for stacks: policies).")
]
Stack = Annotated[str, typer.Option(help="For a DIR: the stack whose settings to use.")]
Fault = Annotated[
    str,
    typer.Option(
        help=(
            "The fault to inject: `one` create fails; `every` create fails once; the engine dies (`crash`);"
            " the cloud throttles (`throttle`), shows new resources late (`lag`) or times out (`hang`);"
            " `all`: each of these, and every update and delete fails once."
        )
    ),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE=N",
        help="The quota of a resource type, e.g. aws:ec2/eip:Eip=2 (default: that of a new account).",
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help=(
            "Where the stack is applied from: a `laptop` or `ci` on the internet, or a `runner` inside the"
            " network or in one connected to it."
        ),
    ),
]
Day = Annotated[
    str, typer.Option("--date", metavar="DAY", help="Check support calendars and exceptions as of this day.")
]
Network = Annotated[
    bool,
    typer.Option(
        "--network",
        help="Let the program and policy packs use the network. Without it, the kernel refuses (Linux).",
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME",
        help="Pass this environment variable to the program. Only harmless ones are passed without it.",
    ),
]
Until = Annotated[
    str,
    typer.Option(
        metavar="STEP",
        help="Stop after this step: preview, policies, apply, no-op, ... (default: run all steps).",
    ),
]
Seed = Annotated[int, typer.Option(help="Selects what fails, changes and is replaced.")]
OnCluster = Annotated[
    str | None,
    typer.Option(
        metavar="[NAME]",
        help=(
            "Create the Kubernetes objects on the cluster of `trainfleet cluster up --name NAME` (without"
            " a name: `local`), and delete them at the end."
        ),
    ),
]
Context = Annotated[
    str, typer.Option(help="Like --on-cluster, for the cluster of this context in your kubeconfig.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Agree that objects are created and deleted in that context.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="On a cluster: only ask its API server whether it accepts each object. STACK may be `all`.",
    ),
]
Leave = Annotated[
    bool,
    typer.Option(
        "--leave",
        help="On a cluster: stop after the second preview and keep the stack running (see --clean-up).",
    ),
]
CleanUp = Annotated[
    bool,
    typer.Option(
        "--clean-up",
        help="On a cluster: only remove what --leave or a killed rehearsal left behind.",
    ),
]


def check_cluster_flags(cluster: Target | None, flag: str, until: str, *, leave: bool) -> None:
    """Reject `flag`, which needs a cluster, without one; and two flags that name the last step."""
    from trainfleet.errors import InputError, Problem

    if cluster is None and flag:
        raise InputError("no cluster given", [Problem(flag, "needs a cluster", "--on-cluster NAME")])
    if leave and until:
        raise InputError(
            "conflicting options", [Problem("--leave", "stops after the second preview", "omit --until")]
        )


def check_options(options: RehearsalOptions, until: str) -> None:
    """Reject an unknown place, fault or last step."""
    check_place(options.applied_from)
    check_fault(options.fault, options.cluster)
    check_step(until, options)


def check_place(place: str) -> None:
    """Reject an unknown place."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.simulation.reachability import PLACES
    from trainfleet.suggestions import did_you_mean

    if place not in PLACES:
        raise InputError(
            "unknown place", [Problem(f"--from {place}", "is not a place", did_you_mean(place, list(PLACES)))]
        )


def check_fault(fault: str, cluster: Target | None) -> None:
    """Reject an unknown fault, and `all` on a cluster."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.steps.fault_scenarios import FAULTS

    if cluster is not None and fault == "all":
        what, others = "`all` rehearses two stacks in parallel", "every, crash, throttle, lag or hang"
        raise InputError("not available on a cluster", [Problem("--fault", what, others)])
    if fault not in FAULTS:
        raise InputError("unknown fault", [Problem("--fault", f"{fault!r} is not known", ", ".join(FAULTS))])


def check_step(until: str, options: RehearsalOptions) -> None:
    """Reject a last step that a rehearsal with these options does not have."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.rehearse import steps_of
    from trainfleet.suggestions import did_you_mean

    if until and until not in (names := [name for name, _, _ in steps_of(options)]):
        raise InputError(
            "unknown step",
            [Problem("--until", f"{until!r} is not a step", did_you_mean(until, names) or ", ".join(names))],
        )


def check_files(policy_packs: list[Path], written: list[Path]) -> None:
    """Reject folders that are not policy packs, and files whose folder does not exist."""
    from trainfleet.errors import InputError, Problem

    for pack in policy_packs:
        if not (pack / "PulumiPolicy.yaml").is_file():
            raise InputError("not a policy pack", [Problem(str(pack), "has no PulumiPolicy.yaml")])
    for path in written:
        if not path.resolve().parent.is_dir():
            raise InputError(
                "cannot write there",
                [Problem(str(path), "its folder does not exist", f"mkdir -p {path.parent}")],
            )


def quotas(given: list[str]) -> dict[str, int]:
    """Return the quotas by resource type.

    Raises:
        InputError: every text that is not TYPE=N.
    """
    from trainfleet.errors import InputError, Problem

    wrong = [text for text in given if not re.fullmatch(r"[\w-]+:[\w/.]+:\w+=\d+", text)]
    if wrong:
        raise InputError(
            "not a quota",
            [Problem("--quota", f"{text!r} is not TYPE=N", "aws:ec2/eip:Eip=2") for text in wrong],
        )
    return {token: int(most) for token, _, most in (text.partition("=") for text in given)}

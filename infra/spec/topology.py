"""The part `gpu_pools[].topology` of a spec: where in the network the workers of a run are placed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainfleet.infra.spec.part import Part

HOST = "kubernetes.io/hostname"
"""The lowest level of every topology, which the platform adds."""
Label = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
    ),
]
EXAMPLE = ["example.com/block", "example.com/rack"]


class Topology(Part):
    """Topology-aware scheduling by Kueue: the workers of a run get nodes that are close together."""

    levels: tuple[Label, ...] = Field((), max_length=15, examples=[EXAMPLE])
    """Labels of the nodes, from the widest part of the network to the closest. Empty = those that the cloud
    sets.
    """
    required: str = Field("", examples=["example.com/block"])
    """The level within which all workers of a run must fit; a run that does not waits. Empty = the run
    prefers the closest level, and uses wider ones if it does not fit.
    """

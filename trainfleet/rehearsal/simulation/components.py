"""Components that a plugin of their package builds (awsx, eks): `Construct` of the provider protocol.

A rehearsal does not have the plugin, so it knows neither the component's resources nor its outputs. The
project gives the outputs in rehearsal.toml; the component is then one resource without children.
"""

from __future__ import annotations

from typing import Any

import grpc
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import resource_pb2, resource_pb2_grpc

from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.pulumi_values import from_struct, plain, to_struct
from trainfleet.rehearsal.simulation.schema import Package
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.values import Identity, digest, made_outputs

REASON = (
    "a component that the plugin of its package builds, and a rehearsal does not run plugins: its own"
    " resources are not rehearsed"
)


def construct(package: Package, model: CloudModel, cloud: Cloud, request: Any) -> Any:
    """Register a component with the engine, and return its URN and outputs."""
    inputs = from_struct(request.inputs)
    written = cloud.accepted.outputs(request.type, request.name)
    resource = package.resource(request.type)
    seed = digest(request.type, request.name)
    identity = Identity(request.type, request.name, seed[:17], model.region, model.account, {})
    outputs = made_outputs(resource, identity) if resource else {}
    if written is None:
        row = {"type": request.type, "name": request.name, "outputs": outputs}
        cloud.missing_answer(f"{request.type} {request.name}", row, REASON)
    with grpc.insecure_channel(request.monitorEndpoint) as channel:
        monitor = resource_pb2_grpc.ResourceMonitorStub(channel)
        urn = monitor.RegisterResource(
            resource_pb2.RegisterResourceRequest(
                type=request.type,
                name=request.name,
                parent=request.parent,
                object=request.inputs,
                protect=request.protect,
                dependencies=request.dependencies,
                acceptSecrets=True,
            )
        ).urn
        if resource and (mistakes := model.check(package, request.type, plain(inputs))):
            cloud.refuse(urn, mistakes)
            raise ValueError("; ".join(map(str, mistakes)))
        cloud.warn(urn, REASON)
        state = to_struct({**outputs, **(written or {})})
        monitor.RegisterResourceOutputs(resource_pb2.RegisterResourceOutputsRequest(urn=urn, outputs=state))
    return pb.ConstructResponse(urn=urn, state=state)

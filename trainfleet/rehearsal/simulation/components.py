"""Components that a plugin of their package builds (awsx, eks): `Construct` and `Call` of the protocol.

A rehearsal does not have the plugin, so it does not know the component's resources. The component is one
resource; its outputs have the types of the SDK's class and plausible values, or those of rehearsal.toml.
"""

# ruff: noqa: N802 - the protocol defines the method names

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as rpc
from pulumi.runtime.proto import resource_pb2, resource_pb2_grpc

from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.component_outputs import component_outputs, method_result, same_as_inputs
from trainfleet.rehearsal.simulation.pulumi_values import (
    RESOURCE,
    SIGNATURE,
    UNKNOWN,
    from_struct,
    plain,
    resolved,
    to_struct,
)
from trainfleet.rehearsal.simulation.schema import Package, ResourceType, packages
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.values import Identity, digest

Models = Mapping[str, CloudModel]
REASON = (
    "the plugin of its package builds this component, and a rehearsal does not run plugins: the resources in"
    " it are not checked, priced or seen by policies, and its outputs are simulated"
)
UNDECLARED = "a component that the plugin of its package builds, and no installed SDK has its type"


class ComponentServicer(rpc.ResourceProviderServicer):
    """The part of a provider that is about components."""

    package: Package
    models: Models
    cloud: Cloud

    def Construct(self, request: Any, context: Any) -> Any:
        try:
            return construct(self.package, self.models, self.cloud, request)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def Call(self, request: Any, context: Any) -> Any:
        try:
            found = call(self.package, self.models, request)
        except LookupError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return pb.CallResponse(**{"return": to_struct(found)})


def construct(package: Package, models: Models, cloud: Cloud, request: Any) -> Any:
    """Register a component with the engine, and return its URN and outputs.

    Raises:
        ValueError: the component's inputs have mistakes.
    """
    inputs = resolved(from_struct(request.inputs))
    resource = package.resource(request.type)
    written = cloud.accepted.outputs(request.type, request.name)
    if resource is None and written is None:
        row = {"type": request.type, "name": request.name, "outputs": {}}
        cloud.missing_answer(f"{request.type} {request.name}", row, UNDECLARED)
    with grpc.insecure_channel(request.monitorEndpoint) as channel:
        monitor = resource_pb2_grpc.ResourceMonitorStub(channel)
        urn = monitor.RegisterResource(
            resource_pb2.RegisterResourceRequest(
                type=request.type,
                name=request.name,
                parent=request.parent,
                object=to_struct(inputs),
                propertyDependencies={
                    name: resource_pb2.RegisterResourceRequest.PropertyDependencies(urns=each.urns)
                    for name, each in request.inputDependencies.items()
                },
                protect=request.protect,
                aliases=request.aliases,
                ignoreChanges=request.ignoreChanges,
                retainOnDelete=request.retainOnDelete,
                dependencies=request.dependencies,
                acceptSecrets=True,
                acceptResources=True,
            )
        ).urn
        model = models.get(package.name) or CloudModel()
        if resource and (mistakes := model.check(package, request.type, plain(inputs))):
            cloud.refuse(urn, mistakes)
            raise ValueError("; ".join(map(str, mistakes)))
        cloud.warn(urn, REASON)
        outputs = {}
        if resource:
            contents = Contents(request, models, cloud, monitor, urn, plain(inputs))
            outputs = contents.outputs(resource, cloud.components.get(urn))
            if not request.dryRun:
                cloud.components.setdefault(urn, {})
        state = to_struct({**outputs, **(written or {})})
        monitor.RegisterResourceOutputs(resource_pb2.RegisterResourceOutputsRequest(urn=urn, outputs=state))
    return pb.ConstructResponse(urn=urn, state=state)


def call(package: Package, models: Models, request: Any) -> dict[str, Any]:
    """Return the result of a component's method, such as `eks:index:Cluster/getKubeconfig`.

    Raises:
        LookupError: the SDK has no such method.
    """
    token, _, method = request.tok.rpartition("/")
    resource = package.resource(token)
    component = resolved(from_struct(request.args)).get("__self__")
    urn = str(component.get("urn") if isinstance(component, dict) else component)
    if resource is not None:
        identity = _identity(token, urn.rsplit("::", 1)[-1], resource, models, dict(request.config))
        if (result := method_result(package, token, method, identity)) is not None:
            return result
    raise LookupError(f"{request.tok} is not a method of pulumi-{package.name} {package.version}")


def _identity(
    token: str, name: str, resource: ResourceType, models: Models, config: Mapping[str, str]
) -> Identity:
    """Return what the outputs of a component derive from: that of the cloud that its outputs refer to."""
    clouds = [*resource.refers_to, *(key.partition(":")[0] for key in config if key.endswith(":region"))]
    cloud = next((each for each in clouds if each in models), "")
    model = models.get(cloud) or CloudModel()
    package, module, kind = (*token.split(":"), "", "")[:3]
    shown = f"{cloud or package}:{package if module == 'index' else module}:{kind}"
    region = config.get(f"{cloud}:region") or model.region
    return Identity(shown, name, digest(token, name)[:17], region, model.account, {})


@dataclass
class Contents:
    """What a component's outputs refer to: the engine reads it, as if it existed outside of the program."""

    request: Any
    models: Models
    cloud: Cloud
    monitor: Any
    urn: str
    inputs: dict[str, Any]
    _made: dict[str, Any] = field(default_factory=dict)

    def outputs(self, resource: ResourceType, existing: dict[str, Any] | None) -> dict[str, Any]:
        """Return the outputs. What does not exist yet is unknown in a preview, as with the plugin.

        Args:
            resource: what the SDK declares.
            existing: None if the component does not exist; its outputs if they come from a state.
        """
        given = same_as_inputs(resource, self.inputs)
        if existing is None and self.request.dryRun:
            return dict.fromkeys(resource.outputs, UNKNOWN) | given
        if existing:
            found = {name: self._as_deployed(value) for name, value in existing.items()}
            return found | {name: value for name, value in given.items() if name in found}
        identity = _identity(
            self.request.type, self.request.name, resource, self.models, dict(self.request.config)
        )
        model = self.models.get(self.request.type.partition(":")[0]) or CloudModel()
        return component_outputs(
            resource, self.inputs, identity, model.lengths(self.request.type, self.inputs), self.refer
        )

    def refer(self, cls: type, path: tuple[str, ...], resource_id: str) -> Any:
        """Return a reference to a resource of a class, or None if its package is not simulated."""
        token = str(getattr(cls, "pulumi_type", ""))
        is_provider = token.startswith("pulumi:providers:")
        package = token.split(":")[2 if is_provider else 0]
        if package not in packages():
            return None
        # What a component has one of is the same object in all outputs: `eksCluster` and `core.cluster`.
        kind = cls.__name__.lower()
        own = (kind, f"{self.request.type.partition(':')[0]}{kind}")
        name = "-".join([self.request.name, *((kind,) if path[-1].lower() in own else path)])
        key = f"{token} {name}"
        if key not in self._made:
            if is_provider:
                self._made[key] = self._provider(token, package, name)
            elif _is_component(cls):
                self._made[key] = self._component(token, name)
            else:
                model = self.models.get(package) or CloudModel()
                made = model.make_id(token, {}, name, digest(self.urn, name))
                found = resource_id or made
                if kind == self.request.type.rpartition(":")[2].lower():  # the VPC of a Vpc
                    self.cloud.known[token, found] = self._inputs_of(token, package)
                self._made[key] = self._read(token, package, name, found)
        return self._made[key]

    def _inputs_of(self, token: str, package: str) -> dict[str, Any]:
        """Return the inputs that a type in the component has, too."""
        declared = resource.outputs if (resource := packages()[package].resource(token)) else {}
        return {name: value for name, value in self.inputs.items() if name in declared and value != UNKNOWN}

    def _as_deployed(self, value: Any) -> Any:
        """Return an output of a state, with references to what it refers to."""
        if isinstance(value, list):
            return [self._as_deployed(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get(SIGNATURE) != RESOURCE:
            return {key: self._as_deployed(item) for key, item in value.items()}
        urn, own = str(value.get("urn", "")), str(value.get("id") or "")
        if urn not in self._made:
            kinds, name = urn.split("::")[-2:]
            token = kinds.rsplit("$", 1)[-1]
            package = token.partition(":")[0]
            if token.startswith("pulumi:providers:"):
                settings = self.cloud.providers.get(urn)
                self._made[urn] = self._provider(token, token.split(":")[2], name, settings)
            elif own:
                self._made[urn] = self._read(token, package, name, own)
            else:
                self._made[urn] = self._component(token, name)
        return self._made[urn]

    def _read(self, token: str, package: str, name: str, resource_id: str) -> dict[str, Any]:
        done = self.monitor.ReadResource(
            resource_pb2.ReadResourceRequest(
                id=resource_id,
                type=token,
                name=name,
                parent=self.urn,
                properties=to_struct({}),
                provider=self.request.providers.get(package, ""),
                version=packages()[package].version,
                acceptSecrets=True,
                acceptResources=True,
            )
        )
        return _reference(done.urn, package, resource_id)

    def _provider(
        self, token: str, package: str, name: str, settings: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if settings is None:
            region = self.request.config.get(f"{package}:region")
            settings = {"region": region} if region else {}
            if package == "kubernetes":
                settings = {"kubeconfig": json.dumps({"apiVersion": "v1", "kind": "Config"})}
        return self._registered(token, package, name, settings, custom=True)

    def _component(self, token: str, name: str) -> dict[str, Any]:
        return self._registered(token, token.partition(":")[0], name, {}, custom=False)

    def _registered(
        self, token: str, package: str, name: str, settings: dict[str, Any], *, custom: bool
    ) -> dict[str, Any]:
        done = self.monitor.RegisterResource(
            resource_pb2.RegisterResourceRequest(
                type=token,
                name=name,
                parent=self.urn,
                custom=custom,
                object=to_struct(settings),
                version=packages()[package].version if custom else "",
                acceptSecrets=True,
                acceptResources=True,
            )
        )
        if not custom:
            self.monitor.RegisterResourceOutputs(
                resource_pb2.RegisterResourceOutputsRequest(urn=done.urn, outputs=to_struct({}))
            )
        return _reference(done.urn, package, done.id if custom else None)


def _is_component(cls: type) -> bool:
    from pulumi import ComponentResource

    return issubclass(cls, ComponentResource)


def _reference(urn: str, package: str, resource_id: str | None) -> dict[str, Any]:
    found = {SIGNATURE: RESOURCE, "urn": urn, "packageVersion": packages()[package].version}
    return found if resource_id is None else {**found, "id": resource_id}

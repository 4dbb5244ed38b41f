"""A simulated provider: Pulumi's resource provider protocol over gRPC, one server per installed SDK.

PULUMI_DEBUG_PROVIDERS attaches the servers to the engine, so that it does not look up or download plugins.
"""

# ruff: noqa: N802, ARG002 - the protocol defines the method names and arguments

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent import futures
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf import any_pb2, empty_pb2
from google.rpc import status_pb2  # type: ignore[import-untyped]  # googleapis-common-protos ships no types
from pulumi.runtime.proto import plugin_pb2
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as rpc

from trainfleet.rehearsal.simulation import dynamic, functions
from trainfleet.rehearsal.simulation.aws.model import AwsModel
from trainfleet.rehearsal.simulation.azure.model import AzureModel
from trainfleet.rehearsal.simulation.changes import changes
from trainfleet.rehearsal.simulation.check import Mistake, at_path
from trainfleet.rehearsal.simulation.cloud_model import CloudModel
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.components import ComponentServicer
from trainfleet.rehearsal.simulation.fault_injection import (
    TRIES,
    InjectedFaultError,
    NotReadyError,
    ThrottledError,
)
from trainfleet.rehearsal.simulation.function_arguments import ArgumentsError
from trainfleet.rehearsal.simulation.gcp.model import GcpModel
from trainfleet.rehearsal.simulation.kubernetes.model import KubernetesModel
from trainfleet.rehearsal.simulation.normalization import as_read, normalized
from trainfleet.rehearsal.simulation.other_packages import OTHER_MODELS
from trainfleet.rehearsal.simulation.property_paths import join_path
from trainfleet.rehearsal.simulation.pulumi_values import (
    UNKNOWN,
    NotFiniteError,
    from_struct,
    plain,
    to_struct,
)
from trainfleet.rehearsal.simulation.replacement import Effect, Rule, effects, in_terms_of_new, table
from trainfleet.rehearsal.simulation.schema import Package, packages
from trainfleet.rehearsal.simulation.state import Cloud, Operation, RefusedError
from trainfleet.rehearsal.simulation.values import digest

CLOUD_MODELS: dict[str, CloudModel] = {
    "aws": AwsModel(),
    "azure-native": AzureModel(),
    "gcp": GcpModel(),
    "kubernetes": KubernetesModel(),
    dynamic.PACKAGE: dynamic.DynamicModel(),
    **OTHER_MODELS,
}
_OPTIONS = [
    ("grpc.max_receive_message_length", 400 << 20),
    ("grpc.max_send_message_length", 400 << 20),
    ("grpc.so_reuseport", 0),
]


class SimulatedProvider(ComponentServicer):
    """The provider of one package, on a shared `Cloud`."""

    def __init__(self, package: Package, cloud: Cloud, rules: Mapping[str, Rule]) -> None:
        self.package, self.cloud, self.rules, self.models = package, cloud, rules, CLOUD_MODELS
        self.model = CLOUD_MODELS.get(package.name) or CloudModel()
        self.settings: dict[str, dict[str, Any]] = {}
        """The settings of each provider instance, by its gRPC peer."""
        self._right: set[str] = set()

    def Handshake(self, request: Any, context: Any) -> Any:
        return pb.ProviderHandshakeResponse(accept_secrets=True, accept_resources=False, accept_outputs=False)

    def Attach(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=self.package.version)

    def CheckConfig(self, request: Any, context: Any) -> Any:
        try:
            from_struct(request.news)
        except NotFiniteError as error:
            return self._refused(request.urn, [Mistake(error.path, error.what)])
        return pb.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        old, new = plain(from_struct(request.old_inputs)), plain(from_struct(request.news))
        if self.cloud.deployed:
            old = self.cloud.deployed.readable(old, new)
        before, after = (self.model.config_compared(each) for each in (old, new))
        names = [change.path[0] for change in changes(before, after) if change.path]
        replaces = self.model.config_replaces(old, new) if names else []
        return pb.DiffResponse(
            changes=pb.DiffResponse.DIFF_SOME if names else pb.DiffResponse.DIFF_NONE,
            diffs=sorted({*names, *replaces}),
            replaces=replaces,
        )

    def Configure(self, request: Any, context: Any) -> Any:
        given = plain(from_struct(request.args))
        self.settings[context.peer()] = {name: value for name, value in given.items() if value != UNKNOWN}
        return pb.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, acceptResources=False, acceptOutputs=False
        )

    def Check(self, request: Any, context: Any) -> Any:
        settings = self.settings.get(context.peer(), {})
        try:
            given = from_struct(request.news)
        except NotFiniteError as error:
            return self._refused(request.urn, [Mistake(error.path, error.what)])
        inputs = self.model.completed(self.package.resource(request.type), given, settings)
        mistakes = self._rejected(request, plain(inputs))
        if mistakes:
            return self._refused(request.urn, mistakes)
        random = self.cloud.seed(request.urn)
        named = self.model.with_name(
            self.package.resource(request.type),
            request.type,
            inputs,
            from_struct(request.olds),
            request.urn.rsplit("::", 1)[-1],
            random,
        )
        if self.cloud.deployed:
            old = from_struct(request.olds)
            resource = self.package.resource(request.type)
            declared = resource.inputs if resource else given.keys() | old.keys()
            named = self.cloud.deployed.with_defaults(
                given, named, old, declared, self.model.name_property(request.type)
            )
        return pb.CheckResponse(inputs=to_struct(named))

    def _refused(self, urn: str, mistakes: list[Mistake]) -> Any:
        self.cloud.refuse(urn, mistakes)
        failures = [pb.CheckFailure(property=each.path, reason=str(each)) for each in mistakes]
        return pb.CheckResponse(failures=failures)

    def _rejected(self, request: Any, inputs: dict[str, Any]) -> list[Mistake]:
        """Return the mistakes that reject a resource; warn about the others."""
        rejected = []
        for mistake in self._mistakes(request.type, inputs):
            value = at_path(inputs, mistake.path)
            row = self.cloud.accepted.accepting(request.type, mistake.property, value)
            if row is None or row.expired:
                ended = f"accepted until {row.until}, which has passed" if row else ""
                reported = replace(mistake, fix="; ".join(filter(None, (mistake.fix, ended))))
                if mistake.open:
                    self.cloud.warn(request.urn, reported.with_source)
                else:
                    rejected.append(reported)
            else:
                self.cloud.warn(request.urn, f"{mistake} is accepted: {row.reason}")
        return rejected

    def _mistakes(self, token: str, inputs: dict[str, Any]) -> list[Mistake]:
        """Return the mistakes in plain inputs. Valid inputs are cached, also across runs."""
        key = digest(token, json.dumps(inputs, sort_keys=True))
        if key in self._right:
            return []
        mistakes = self.model.check(self.package, token, inputs)
        if mistakes and self.cloud.other_sdk is not None:
            return self.cloud.other_sdk(token, mistakes)
        if not mistakes:
            self._right.add(key)
        return mistakes

    def Diff(self, request: Any, context: Any) -> Any:
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        if self.cloud.deployed:
            old = self.cloud.deployed.readable(plain(old), plain(new))
        before = in_terms_of_new(request.type, plain(old), plain(new), self.rules)
        found = list(changes(before, plain(new)))
        rule = self.rules.get(request.type)
        effect = effects(request.type, before, plain(new), self.rules)
        replacing = [
            change
            for change in found
            if effect[change.path] is Effect.REPLACE or self.model.always_replaces(request.type, change.path)
        ]
        first = bool(replacing) and (
            self.model.delete_first(request.type, old, new)
            or (rule is not None and any(rule.forces_delete_first(c.path) for c in found))
        )
        detail = {
            join_path(change.path): pb.PropertyDiff(
                kind=pb.PropertyDiff.Kind.Value(change.kind + ("_REPLACE" if change in replacing else "")),
                inputDiff=True,
            )
            for change in found
        }
        return pb.DiffResponse(
            changes=pb.DiffResponse.DIFF_SOME if found else pb.DiffResponse.DIFF_NONE,
            diffs=sorted({change.path[0] for change in found}),
            replaces=sorted({join_path(change.path) for change in replacing}),
            detailedDiff=detail,
            hasDetailedDiff=True,
            deleteBeforeReplace=first,
        )

    def Create(self, request: Any, context: Any) -> Any:
        inputs = from_struct(request.properties)
        logical = request.urn.rsplit("::", 1)[-1]
        name = self.model.physical_name(request.type, inputs) or logical
        if request.preview:
            return pb.CreateResponse(
                properties=to_struct(self._outputs(request.type, inputs, logical, "", context, preview=True))
            )
        placed = self._placed(context, inputs)
        resource_id = self.model.make_id(request.type, plain(placed), name, self.cloud.seed(request.urn))
        outputs = self._outputs(request.type, inputs, logical, resource_id, context, preview=False)
        outputs |= self.cloud.accepted.outputs(request.type, logical) or {}
        if not_done := self.model.not_done(request.type):
            self.cloud.warn(request.urn, not_done)
        if self.cloud.waits:
            outputs |= self.cloud.waits.assigned(request.type)
        unique = self.model.unique_key(request.type, placed, self._region(context, inputs))
        try:
            self._check_reachable(context)
            self._make(
                CloudObject(
                    request.urn, request.type, resource_id, unique, inputs, outputs, self._place(context)
                ),
                request.timeout,
            )
        except NotReadyError as error:
            _not_ready(context, str(error), resource_id, inputs, outputs)
        except (InjectedFaultError, RefusedError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.CreateResponse(id=resource_id, properties=to_struct(outputs))

    def _make(self, record: CloudObject, timeout: float) -> None:
        """Create a resource and retry a throttled call as a real provider does, but without the delay."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(ThrottledError):
                self.cloud.create(record, timeout)
                return
        self.cloud.create(record, timeout)

    def Read(self, request: Any, context: Any) -> Any:
        record = self.cloud.find(request.type, request.id, self._place(context))
        if record is not None:
            record = as_read(record, self.cloud.everything())
            return pb.ReadResponse(
                id=request.id, inputs=to_struct(record.inputs), properties=to_struct(record.outputs)
            )
        key = request.type, request.id, self._place(context)
        if (request.inputs.fields or request.properties.fields) and key not in self.cloud.external:
            return pb.ReadResponse(id="")
        if key not in self.cloud.external:  # a program reads what exists outside of it, by its id
            outputs = self._outputs(request.type, {}, request.id, request.id, context, preview=False)
            name = request.urn.rsplit("::", 1)[-1]
            outputs |= self.cloud.known.get((request.type, request.id), {})
            outputs |= self.cloud.accepted.outputs(request.type, name, request.id) or {}
            self.cloud.external[key] = CloudObject(request.urn, request.type, request.id, "", {}, outputs)
            self.cloud.operations.append(Operation("read", request.urn, request.type, request.id))
        outputs = self.cloud.external[key].outputs
        return pb.ReadResponse(id=request.id, inputs=to_struct({}), properties=to_struct(outputs))

    def Update(self, request: Any, context: Any) -> Any:
        inputs = from_struct(request.news)
        outputs = self._outputs(
            request.type, inputs, request.urn.rsplit("::", 1)[-1], request.id, context, preview=False
        )
        if self.cloud.deployed:
            outputs = self.cloud.deployed.outputs(from_struct(request.olds), outputs, inputs)
        before = from_struct(request.old_inputs)
        outputs |= self.model.updated(request.type, before, inputs, from_struct(request.olds))
        if not request.preview:
            try:
                self._check_reachable(context)
                self.cloud.update(
                    request.type, request.id, request.urn, inputs, outputs, self._place(context)
                )
            except KeyError:
                context.abort(
                    grpc.StatusCode.NOT_FOUND, f"{request.type} {request.id} does not exist any more"
                )
            except (InjectedFaultError, RefusedError) as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.UpdateResponse(properties=to_struct(outputs))

    def Delete(self, request: Any, context: Any) -> Any:
        try:
            self._check_reachable(context)
            self.cloud.delete(request.type, request.id, request.urn, self._place(context))
        except (InjectedFaultError, RefusedError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        known = self.model.answers.keys() | self.model.finders.keys()
        try:
            given = plain(from_struct(request.args))
            args = plain(self._placed(context, given)) if request.tok in known else given
            region = self._region(context, args)
            found = functions.result(self.package, self.model, self.cloud, request.tok, args, region)
        except LookupError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except (NotFiniteError, ArgumentsError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if self.cloud.deployed:
            found = self.cloud.deployed.answer(found)
        return pb.InvokeResponse(**{"return": to_struct(found)})

    def _check_reachable(self, context: Any) -> None:
        """Check the route to the API server of a Kubernetes provider."""
        if self.package.name == "kubernetes":
            self.cloud.check_reachable(str(self.settings.get(context.peer(), {}).get("kubeconfig", "")))

    def _region(self, context: Any, inputs: dict[str, Any]) -> str:
        known = {name: value for name, value in plain(inputs).items() if value != UNKNOWN}
        return self.model.region_of(known, self.settings.get(context.peer(), {}))

    def _place(self, context: Any) -> str:
        return self.model.place_of(self.settings.get(context.peer(), {}))

    def _placed(self, context: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs with the defaults from the provider's settings."""
        return {**self.model.defaults(self.settings.get(context.peer(), {})), **inputs}

    def _outputs(
        self,
        token: str,
        inputs: dict[str, Any],
        logical: str,
        resource_id: str,
        context: Any,
        *,
        preview: bool,
    ) -> dict[str, Any]:
        resource, settings = self.package.resource(token), self.settings.get(context.peer(), {})
        place = self.model.defaults(settings)
        outputs = self.model.outputs(
            resource,
            token,
            inputs,
            logical,
            resource_id,
            self._region(context, inputs),
            preview=preview,
            place=place,
        )
        return normalized(outputs, settings)


def _not_ready(
    context: Any, reason: str, resource_id: str, inputs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    """Report a failed create of a resource that exists: the engine keeps it in its state and repairs it."""
    detail = any_pb2.Any()
    detail.Pack(
        pb.ErrorResourceInitFailed(
            id=resource_id, properties=to_struct(outputs), reasons=[reason], inputs=to_struct(inputs)
        )
    )
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=reason, details=[detail])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, reason)


@contextlib.contextmanager
def serve(cloud: Cloud, rules: Mapping[str, Rule] | None = None) -> Iterator[str]:
    """Serve every installed package on `cloud` and yield the value of PULUMI_DEBUG_PROVIDERS."""
    pool = futures.ThreadPoolExecutor(16, thread_name_prefix="provider")
    servers, ports = [], {}
    try:
        for package in packages().values():
            server = grpc.server(pool, options=_OPTIONS)
            rpc.add_ResourceProviderServicer_to_server(
                SimulatedProvider(package, cloud, table() if rules is None else rules), server
            )
            ports[package.name] = server.add_insecure_port("127.0.0.1:0")
            server.start()
            servers.append(server)
        yield ",".join(f"{name}:{port}" for name, port in ports.items())
    finally:
        for server in servers:
            server.stop(None)
        pool.shutdown(wait=False, cancel_futures=True)

"""The adapter from Pulumi's policy types to plain rules.

A rule with resource checks and stack checks becomes two policies, `<name>` and `<name>-everywhere`, because
Pulumi runs the two at different times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_policy
from pulumi_policy import proxy

from trainfleet.dates import today
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.environment import environment_of
from trainfleet.policies.engine.exceptions import EVERYWHERE, Waiver, in_force, waivers, why_not
from trainfleet.policies.engine.rule import (
    UNKNOWN,
    Json,
    Level,
    Resource,
    Rule,
    Violation,
    canonical,
    evaluate,
    evaluate_stack,
)
from trainfleet.policies.engine.stack_settings import read_when_configured
from trainfleet.policies.remediation import platform_tags, remediable, remedy

ENFORCEMENT: Mapping[Level, pulumi_policy.EnforcementLevel] = {
    "mandatory": pulumi_policy.EnforcementLevel.MANDATORY,
    "advisory": pulumi_policy.EnforcementLevel.ADVISORY,
    "off": pulumi_policy.EnforcementLevel.DISABLED,
}
"""Mandatory stops the change, advisory prints a warning. `--policy-pack-config` can relax a rule."""
SECRET_KEY, SECRET_VALUE = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
"""The signature key and value with which the engine marks a secret."""


def policies(own: Iterable[Rule] = ()) -> list[pulumi_policy.Policy]:
    """Return every policy of the pack and of your `own` rules, at the level for the stack's environment."""
    found: list[tuple[Rule, pulumi_policy.Policy]] = []
    for rule in (*RULES, *own):
        if rule.checks:
            found.append((rule, _resource_policy(rule)))
        if rule.stack:
            found.append((rule, _stack_policy(rule)))

    def set_levels() -> None:
        environment = environment_of(_platform())
        for rule, policy in found:
            policy.enforcement_level = ENFORCEMENT[rule.level(environment)]

    set_levels()
    read_when_configured(set_levels)
    return [policy for _, policy in found]


def _resource_policy(rule: Rule) -> pulumi_policy.Policy:
    def validate(args: pulumi_policy.ResourceValidationArgs, report: pulumi_policy.ReportViolation) -> None:
        # Pulumi calls every policy for every resource, so return before copying properties.
        if canonical(args.resource_type) not in rule.checks:
            return
        resource = Resource(
            args.resource_type,
            args.name,
            plain(args.props),
            args.urn,
            settings=args.get_config() or {},
            protect=bool(args.opts.protect),
        )
        for message, _ in _messages(rule, evaluate(rule, resource), resource.name, resource.kind):
            report(message, None)

    def remediate(args: pulumi_policy.ResourceValidationArgs) -> Any:
        # The engine calls this only for rules at the level `remediate`.
        if canonical(args.resource_type) not in fixable:
            return None
        resource = Resource(
            args.resource_type, args.name, plain(args.props), args.urn, settings=args.get_config() or {}
        )
        own = [each for each in _waivers() if each.covers(rule.name, resource.name, resource.kind)]
        values = {} if in_force(own, today()) else remedy(rule, resource, platform_tags(_spec()))
        for path, value in values.items():
            set_value(args.props, path, value)
        return args.props if values else None

    fixable = remediable(rule)
    schema = (
        pulumi_policy.PolicyConfigSchema({name: dict(kind) for name, kind in rule.settings.items()})
        if rule.settings
        else None
    )
    return pulumi_policy.ResourceValidationPolicy(
        rule.name,
        _description(rule),
        validate,
        config_schema=schema,
        remediate=remediate if fixable else None,
        severity=pulumi_policy.Severity(rule.severity),
        remediation_steps=rule.fix,
    )


def _stack_policy(rule: Rule) -> pulumi_policy.Policy:
    packages = tuple({f"{kind.partition(':')[0]}:" for kind in rule.stack})

    def validate(args: pulumi_policy.StackValidationArgs, report: pulumi_policy.ReportViolation) -> None:
        resources = [
            Resource(
                one.resource_type, one.name, plain(one.props), one.urn, _origins(one.property_dependencies)
            )
            for one in args.resources
            if canonical(one.resource_type).startswith(packages)
        ]
        for message, urn in _messages(rule, evaluate_stack(rule, resources), "", ""):
            report(message, urn or None)

    return pulumi_policy.StackValidationPolicy(
        f"{rule.name}{EVERYWHERE}",
        _description(rule),
        validate,
        severity=pulumi_policy.Severity(rule.severity),
        remediation_steps=rule.fix,
    )


def _messages(rule: Rule, violations: Iterable[Violation], name: str, kind: str) -> Iterable[tuple[str, str]]:
    """Yield message and URN of each violation that no exception covers."""
    excepted = _waivers()
    for violation in violations:
        resource = violation.name or name
        own = [each for each in excepted if each.covers(rule.name, resource, _kind(violation.urn) or kind)]
        if in_force(own, today()):
            continue
        note = f" ({why})" if (why := why_not(own, today())) else ""
        yield f"{resource}: {violation.message}{note}\nTo fix: {rule.fix}", violation.urn


def _kind(urn: str) -> str:
    """Return the type in a URN: `urn:pulumi:stack::project::parent$type::name`."""
    parts = urn.split("::")
    return parts[2].rpartition("$")[2] if len(parts) > 3 else ""


def _waivers() -> tuple[Waiver, ...]:
    return waivers(_platform())


def _spec() -> Mapping[str, Json]:
    try:
        found = json.loads(_platform() or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _platform() -> str | None:
    # The engine passes the stack's configuration to the pack (stack_settings.py); `pulumi policy` has none.
    found = pulumi.runtime.get_config("trainfleet:platform")
    return found if isinstance(found, str) else None


def _description(rule: Rule) -> str:
    return f"{rule.statement} [{', '.join(rule.references)}]"


def _origins(dependencies: Mapping[str, Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(resource.urn for resource in resources) for name, resources in dependencies.items()}


def set_value(props: Any, path: str, value: Json) -> None:
    """Set a property at a dotted path in Pulumi's proxies, which keep unknown and secret values."""
    *parents, last = path.split(".")
    for name in parents:
        if not isinstance(props.get(name), Mapping):
            props[name] = {}
        props = props[name]
    props[last] = value


def plain(value: Json) -> Json:
    """Convert Pulumi's proxies to plain data, with UNKNOWN for unknown values and secrets unwrapped."""
    if isinstance(value, Mapping):
        found = {key: _item(value, key) for key in value}
        return found.get("value") if found.get(SECRET_KEY) == SECRET_VALUE else found
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_item(value, index) for index in range(len(value))]
    return value


def _item(container: Any, key: Any) -> Json:
    try:
        return plain(container[key])
    except proxy.UnknownValueError:
        return UNKNOWN

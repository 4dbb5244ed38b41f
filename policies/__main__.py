"""Entry point of the policy pack for Pulumi. Creating a PolicyPack serves it until the process is stopped."""

from pulumi_policy import EnforcementLevel, PolicyPack

from trainfleet.policies.engine.pack import policies

PolicyPack("trainfleet", policies(), EnforcementLevel.MANDATORY)

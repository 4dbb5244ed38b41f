"""The policy pack as Pulumi starts it: the only file that makes a PolicyPack, because making one serves until
it is stopped.
"""

from pulumi_policy import EnforcementLevel, PolicyPack

from trainfleet.policies.engine.pack import policies

PolicyPack("trainfleet", policies(), EnforcementLevel.MANDATORY)

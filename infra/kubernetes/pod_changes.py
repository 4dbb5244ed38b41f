"""What the account of training pods may change of a pod: only the label by which KubeRay counts it.

RBAC cannot tell fields apart, and the right to patch a pod includes its image: code would run with another
run's secrets. Enforced by the API server (ValidatingAdmissionPolicy, Kubernetes 1.30).
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.platform import TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT

NAME = "trainfleet-pod-changes"
ACCOUNT = f"system:serviceaccount:{TRAINING_NAMESPACE}:{TRAINING_SERVICE_ACCOUNT}"
VARIABLES = {
    "before": "oldObject.metadata.?labels.orValue({})",
    "after": "object.metadata.?labels.orValue({})",
}
KEPT = ("annotations", "finalizers", "ownerReferences")
RULES = {
    "object.spec == oldObject.spec": "specification",
    **{f"object.metadata.?{field} == oldObject.metadata.?{field}": field for field in KEPT},
    "variables.after.all(key, key in variables.before)": "labels by a new one",
    "variables.before.all(key, key in variables.after && (variables.after[key] == variables.before[key] || "
    "(key == 'ray.io/cluster' && variables.after[key] == 'trainfleet.lost')))": "labels",
}
"""CEL expressions that must hold, and what would be changed otherwise."""


def limit_pod_changes(name: str, options: pulumi.ResourceOptions) -> pulumi.Resource:
    """Declare the policy and its binding; the binding, after which the right may be given.

    Args:
        name: the platform's.
        options: of both objects.
    """
    admission = k8s.admissionregistration.v1
    policy = admission.ValidatingAdmissionPolicy(
        f"{name}-pod-changes",
        metadata=k8s.meta.v1.ObjectMetaArgs(name=NAME),
        spec=admission.ValidatingAdmissionPolicySpecArgs(
            failure_policy="Fail",
            match_constraints=admission.MatchResourcesArgs(
                resource_rules=[
                    admission.NamedRuleWithOperationsArgs(
                        api_groups=[""], api_versions=["v1"], operations=["UPDATE"], resources=["pods"]
                    )
                ]
            ),
            match_conditions=[
                admission.MatchConditionArgs(
                    name="training-pods", expression=f"request.userInfo.username == '{ACCOUNT}'"
                )
            ],
            variables=[
                admission.VariableArgs(name=key, expression=value) for key, value in VARIABLES.items()
            ],
            validations=[
                admission.ValidationArgs(
                    expression=rule, message=f"training pods may not change the {what} of a pod"
                )
                for rule, what in RULES.items()
            ],
        ),
        opts=options,
    )
    return admission.ValidatingAdmissionPolicyBinding(
        f"{name}-pod-changes-binding",
        metadata=k8s.meta.v1.ObjectMetaArgs(name=NAME),
        spec=admission.ValidatingAdmissionPolicyBindingSpecArgs(
            policy_name=NAME, validation_actions=["Deny"]
        ),
        opts=pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[policy])),
    )

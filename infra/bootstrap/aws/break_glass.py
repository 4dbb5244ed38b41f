"""BreakGlass: the role that named people assume with a second factor when CI cannot apply. Each use is
announced by e-mail.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout
from trainfleet.infra.aws.keys import owned_by_account
from trainfleet.infra.bootstrap.aws import documents
from trainfleet.infra.bootstrap.aws.identities import Identities
from trainfleet.infra.bootstrap.aws.state import State
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.component import SpecComponent

SESSION_S = 3600


class BreakGlass(SpecComponent[BootstrapSpec]):
    """The role `role`, which may apply and restore state, and the alert of its use."""

    TYPE = "trainfleet:bootstrap:aws:BreakGlass"

    def __init__(
        self,
        spec: BootstrapSpec,
        state: State,
        identities: Identities,
        account: pulumi.Input[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "break-glass", opts)
        trust = documents.trust_people(spec.break_glass.people)
        self.role = identities.role("break-glass", trust, SESSION_S)
        restore = identities.policy("restore-state", documents.restore(state.bucket.arn))
        identities.attach("break-glass", self.role, [*identities.write, restore])
        self._alert(account)
        self.register_outputs({"role": self.role.arn})

    def _alert(self, account: pulumi.Input[str]) -> None:
        rule = aws.cloudwatch.EventRule(
            self.name("break-glass-used"),
            description="Somebody assumed the break-glass role, or tried to",
            event_pattern=pulumi.Output.json_dumps(
                {
                    "source": ["aws.sts"],
                    "detail-type": ["AWS API Call via CloudTrail"],
                    "detail": {
                        "eventName": ["AssumeRole"],
                        "requestParameters": {"roleArn": [self.role.arn]},
                    },
                }
            ),
            # CloudTrail counts AssumeRole as a read, which other rules do not receive.
            state="ENABLED_WITH_ALL_CLOUDTRAIL_MANAGEMENT_EVENTS",
            tags=self.tags("break-glass-used"),
            opts=self.options(protect=True),
        )
        topic = aws.sns.Topic(
            self.name("break-glass-topic"),
            kms_master_key_id=self._key(rule.arn, account).arn,
            tags=self.tags("break-glass-topic"),
            opts=self.options(protect=True),
        )
        publishes = iam_documents.statement(
            "Events",
            ["sns:Publish"],
            [topic.arn],
            principal={"Service": "events.amazonaws.com"},
            when={"ArnEquals": {"aws:SourceArn": rule.arn}},
        )
        allowed = aws.sns.TopicPolicy(
            self.name("break-glass-topic-policy"),
            arn=topic.arn,
            policy=iam_documents.to_json(iam_documents.document(publishes)),
            opts=self.options(),
        )
        aws.cloudwatch.EventTarget(
            self.name("break-glass-target"),
            rule=rule.name,
            arn=topic.arn,
            opts=self.options(depends_on=[allowed]),
        )
        for index, email in enumerate(self.spec.break_glass.alert):
            # AWS sends a message, and alerts begin when its link was opened.
            aws.sns.TopicSubscription(
                self.name(f"break-glass-mail-{index}"),
                topic=topic.arn,
                protocol="email",
                endpoint=email,
                opts=self.options(),
            )

    def _key(self, rule_arn: pulumi.Input[str], account: pulumi.Input[str]) -> aws.kms.Key:
        events = iam_documents.statement(
            "Events",
            ["kms:Decrypt", "kms:GenerateDataKey"],
            ["*"],
            principal={"Service": "events.amazonaws.com"},
            when={"ArnEquals": {"aws:SourceArn": rule_arn}},
        )
        owner = owned_by_account(layout.partition(self.spec.region), account)
        return aws.kms.Key(
            self.name("alert-key"),
            description=f"Trainfleet {self.spec.name}: alerts",
            enable_key_rotation=True,
            deletion_window_in_days=30,
            policy=iam_documents.to_json(iam_documents.document(owner, events)),
            tags=self.tags("alert-key"),
            opts=self.options(protect=True),
        )

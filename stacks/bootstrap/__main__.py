"""The Pulumi program that a person applies once in each account: docs/bootstrap.md."""

from trainfleet.infra.bootstrap.program import run

run()

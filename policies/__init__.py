"""The policy pack (Pulumi CrossGuard): one module of plain functions per theme. Does not import infra."""

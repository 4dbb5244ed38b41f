"""Dashboards and alert rules as code: typed panels here, Grafana's JSON and Prometheus' rules out of them.

Every expression uses metrics of `metrics.METRICS` only, each with its source, so that a dashboard shows what
is measured and
not what somebody once hoped for. Installed by `trainfleet.infra.kubernetes.monitoring`.
"""

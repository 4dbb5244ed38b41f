"""Dashboards and alert rules as code: typed panels that become Grafana's JSON and Prometheus' rules.

Expressions use only metrics of `metrics.METRICS`, each with its source.
"""

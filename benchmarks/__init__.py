"""One file per question about speed. Each prints machine, versions and figures; docs/benchmarks.md keeps
dated results.
"""

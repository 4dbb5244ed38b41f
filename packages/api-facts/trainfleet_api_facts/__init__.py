"""Data for `trainfleet.rehearsal.simulation.facts`: one JSON file per SDK module, collected by
`tools/api_facts`.
"""

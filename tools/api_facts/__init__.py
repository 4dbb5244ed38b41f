"""Collects the facts of the clouds' API models (`trainfleet/rehearsal/simulation/facts`) when an
SDK changes.
"""

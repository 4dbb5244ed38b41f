"""The table of cases: for each rule and each type, how a compliant resource is broken, and what the rule then
says.
"""

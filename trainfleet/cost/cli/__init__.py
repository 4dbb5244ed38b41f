"""The command of the costs."""

"""What is trained: recipe, step loop, strategies, checkpoints, data, metrics, launchers. Never imports
pulumi.
"""

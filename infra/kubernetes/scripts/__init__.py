"""Programs that run in the cluster, carried there as text: no import of anything of ours, and no package
beside Python's own.
"""

"""The Pulumi program of every stack: read the spec, build the cloud, install the cluster layer, export the
contract.
"""

from trainfleet.infra.program import run

run()

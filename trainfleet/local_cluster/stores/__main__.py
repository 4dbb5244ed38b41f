"""`python -m trainfleet.local_cluster.stores`: builds the stores ahead of time."""

from __future__ import annotations

import sys

from trainfleet.console import print_error
from trainfleet.errors import TrainfleetError
from trainfleet.local_cluster.stores.build import azurite, gateways


def main() -> int:
    """Build all and print their paths. Returns the exit code."""
    try:
        print(gateways())
        print(azurite()[-1])
    except TrainfleetError as error:
        print_error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

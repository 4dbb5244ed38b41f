"""Serve until the pod is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Thread

from .api import Api, RefusedError, log
from .server import Server
from .signer import Settings, Signer

REFRESH_S = 30.0
"""How often the Secret of the CA is read again, and the public certificate compared."""
RETRY_S = 2.0


def refresh_until(signer: Signer, last: str = "") -> None:
    """Refresh until it succeeds. Says what it waits for, once."""
    while True:
        try:
            return signer.refresh()
        except RefusedError as refused:
            if refused.reason != last:
                log(f"waiting: {refused.reason}")
            last = refused.reason
            time.sleep(RETRY_S)


def main() -> int:
    """Serve until the pod is stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = Settings.read(os.environ)
    signer = Signer(Api(os.environ), settings)
    refresh_until(signer)
    server = Server(signer, settings.port)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    log(f"serving on port {server.server_address[1]}")
    while thread.is_alive():
        time.sleep(REFRESH_S)
        refresh_until(signer)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""What a program opens its ports and channels with: made once, when it starts, and handed down."""

from __future__ import annotations

from murmurate.edge.net.credentials import PLAINTEXT, Credentials


def own_credentials() -> Credentials:
    """Those of this process. They protect nothing yet, whatever it is configured with."""
    return PLAINTEXT

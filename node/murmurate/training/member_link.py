"""The thread in which a member speaks to its coordinator, and serves its figures."""

from __future__ import annotations

import asyncio

from murmurate.edge.net.coordinator_link import CoordinatorLink
from murmurate.edge.net.credentials import Credentials
from murmurate.edge.net.http import Pages
from murmurate.edge.net.link_thread import LinkThread
from murmurate.edge.net.transport import Limits
from murmurate.errors import MurmurateError
from murmurate.training.leasing import Leasing

CLOSE_S = 3.0
DRAIN_S = 0.05
"""gRPC still tells a closed stream's end to its loop, which must be there."""


class MemberLink:
    """Started at once. What goes wrong in it is raised in the training thread, by `Leasing`."""

    def __init__(
        self,
        coordinator: str,
        leasing: Leasing,
        pages: Pages | None,
        limits: Limits | None,
        credentials: Credentials,
    ) -> None:
        self._leasing = leasing
        self._pages = pages
        self._link = link = CoordinatorLink(coordinator, leasing, limits, credentials)
        self._thread = thread = LinkThread("murmurate-member", self._speak)
        thread.start()
        leasing.wake = lambda: thread.call(link.wake)
        leasing.renew = lambda: thread.call(link.renew)

    async def _speak(self) -> None:
        try:
            if self._pages is not None:
                await self._pages.start()
            await self._link.run()
        except asyncio.CancelledError:
            pass  # closed while nobody answered
        except MurmurateError as error:
            self._leasing.fail(error)
        except BaseException as error:
            self._leasing.fail(error)  # raised in the training thread, at its next step
            raise
        finally:
            if self._pages is not None:
                await self._pages.stop()
            await asyncio.sleep(DRAIN_S)

    def close(self) -> None:
        """Say goodbye, if somebody hears it, and end."""
        self._thread.call(self._link.close)
        self._thread.join(CLOSE_S)

"""Opens connections in a thread of its own, because looking names up and shaking hands block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

__all__ = ["Dialer"]

_POLL_S = 0.05


class Dialer:
    """Runs one blocking call at a time in a daemon thread.

    Whoever does not want to wait any longer leaves the thread to itself; the next call first waits for its end, so that
    threads never pile up. No program waits for such a thread when it ends, which it would with the pool of the loop.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    async def run(self, dial: Callable[[], None], discard: Callable[[], None]) -> None:
        """Call `dial` in a thread and wait for it.

        Args:
            dial: blocks; what it raises is raised here.
            discard: called after `dial` has succeeded when nobody waits for it any more, in whichever thread.
        """
        while self._thread is not None and self._thread.is_alive():  # noqa: ASYNC110 - a thread sets no event of the loop
            await asyncio.sleep(_POLL_S)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
            elif error is None:
                discard()

        def work() -> None:
            error: BaseException | None = None
            try:
                dial()
            except BaseException as caught:
                error = caught
            try:
                loop.call_soon_threadsafe(tell, error)
            except RuntimeError:  # the loop was closed meanwhile
                if error is None:
                    discard()

        self._thread = threading.Thread(target=work, name="edge_vl-mqtt-dial", daemon=True)
        self._thread.start()
        await done

"""Commands for cameras that a gateway does not have."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Sequence

from edge_vl.errors import RequestError
from edge_vl.gateway.camera_reports import ErrorReports, Moment
from edge_vl.gateway.camera_voice import Outlet
from edge_vl.gateway.error_facts import error_facts
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.topics import NAME, NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog

__all__ = ["StrayCommands"]


class StrayCommands:
    """Tells whoever has misspelt a camera's name: in the log, and as an event where that camera's would be."""

    def __init__(self, topics: NodeTopics, cameras: Sequence[str], outlet: Outlet) -> None:
        """Keep what there is.

        Args:
            topics: of the gateway.
            cameras: names of those that it has.
            outlet: takes the messages.
        """
        self._topics = topics
        self._cameras = tuple(cameras)
        self._outlet = outlet
        self._reports = ErrorReports()
        self._filter = re.compile(rf"{re.escape(topics.camera('', ''))[:-1]}([^/]*)/[^/]*/set")
        self._rated_log = RateLimitedLog(logging.getLogger(__name__))

    def handle(self, inbound: Inbound) -> bool:
        """Answer a command that no camera has taken; False: it is none."""
        found = self._filter.fullmatch(inbound.topic)
        if found is None:
            return False
        camera = found[1]
        if inbound.is_retained:
            return True  # nobody waits for the answer
        close = difflib.get_close_matches(camera, self._cameras, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(self._cameras) or 'none'}"
        error = RequestError(f"there is no camera {camera!r:.80} at {self._topics.node}; {hint}", field="camera")
        self._rated_log.warning("camera", "%s", error)
        event = self._reports.event(camera, error_facts(error), Moment.now())
        if event is not None and re.fullmatch(NAME, camera):
            message = Outbound(self._topics.camera(camera, "event"), encode(event), content_type="application/json")
            self._outlet.post(message, "delta")
        return True

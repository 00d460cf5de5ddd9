"""The end of a running watch."""

from __future__ import annotations

from typing import cast

import pytest

from edge_vl.cli.interrupt import Interrupt
from edge_vl.cli.watch_publisher import WatchPublisher
from edge_vl.cli.watching import Watching
from edge_vl.saved_answers import SavedAnswers


@pytest.mark.parametrize("error", [OSError("the terminal is gone"), Interrupt()])
@pytest.mark.parametrize("failing", ["status line", "broker", "folder"])
def test_every_step_of_the_end_is_taken_whatever_becomes_of_the_others(failing: str, error: BaseException) -> None:
    taken: list[str] = []

    class Step:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            taken.append(self.name)
            if self.name == failing:
                raise error

        stop = close

    watching = Watching("What?", (), 1, as_json=False, max_answers=None)
    watching.view.stop = Step("status line").stop  # type: ignore[method-assign]
    watching.publisher = cast(WatchPublisher, Step("broker"))
    watching.saved = cast(SavedAnswers, Step("folder"))
    with pytest.raises(type(error)):
        watching.finish()
    assert taken == ["status line", "broker", "folder"]

"""Conversations that clients have named: each keeps its turns, and so many are kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_vl.conversation import Conversation
    from edge_vl.runtime import Runtime

__all__ = ["ConversationKey", "Conversations"]

ConversationKey = tuple[str, str]
"""Client and name: two clients may choose the same name."""

_MAX_ENDED = 256


class Conversations:
    """Begins, finds and ends them. The one unused longest ends first. One turn of each runs at a time."""

    def __init__(self, runtime: Runtime, max_conversations: int) -> None:
        """Begin with none.

        Args:
            runtime: begins them.
            max_conversations: kept at once; more only while more of them answer.
        """
        self._runtime = runtime
        self._max_conversations = max_conversations
        self._kept: OrderedDict[ConversationKey, Conversation] = OrderedDict()
        self._busy: set[ConversationKey] = set()
        self._ended: OrderedDict[ConversationKey, None] = OrderedDict()  # to make room

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def begin_turn(self, key: ConversationKey) -> tuple[Conversation, bool]:
        """Return a conversation, to be given back with `end_turn`.

        Returns:
            The conversation, and whether it had turns that were given up to make room for others.
        """
        conversation = self._kept.get(key)
        is_new = conversation is None
        if conversation is None:
            conversation = self._kept[key] = self._runtime.conversation()
        self._kept.move_to_end(key)
        self._busy.add(key)
        self._make_room()
        was_ended = is_new and key in self._ended
        self._ended.pop(key, None)
        return conversation, was_ended

    def end_turn(self, key: ConversationKey) -> None:
        """Say that its turn is over."""
        self._busy.discard(key)
        self._make_room()

    def close(self) -> None:
        """End all of them."""
        for conversation in self._kept.values():
            conversation.close()
        self._kept.clear()

    def _make_room(self) -> None:
        for key in list(self._kept):
            if len(self._kept) <= self._max_conversations:
                return
            if key in self._busy:
                continue
            self._kept.pop(key).close()
            self._ended[key] = None
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)

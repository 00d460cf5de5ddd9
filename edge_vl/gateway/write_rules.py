"""What to tell somebody whose broker does not take what a gateway says. Pure."""

from __future__ import annotations

__all__ = ["may_not_write"]


def may_not_write(username: str | None, topic: str, *, is_own: bool = True) -> str:
    """Return words for a person.

    Args:
        username: the gateway connects with; None: none.
        topic: that nothing may be sent to, or what such topics begin with.
        is_own: whether it is one of the gateway's own.
    """
    who = "a user without a name" if username is None else f"user {username}"
    hint = "; with a rule like edge_vl/%u/# the user must be named as the node" if is_own else ""
    return f"the access rules do not let {who} write to {topic}{hint}"

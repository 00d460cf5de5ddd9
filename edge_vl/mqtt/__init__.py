"""Questions and answers over MQTT: the wire, the link to the broker, and the client. Needs the extra `mqtt`.

Example:
    >>> from edge_vl.mqtt import Client
    >>> async with Client("mqtt://127.0.0.1", node="kitchen") as client:
    ...     answer = await client.ask("Is the door open?", images=[{"camera": "door"}]).answer()
"""

from typing import TYPE_CHECKING

from edge_vl.mqtt.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from edge_vl.mqtt.ask_once import ask
    from edge_vl.mqtt.client import Client
    from edge_vl.mqtt.fleet import Fleet
    from edge_vl.mqtt.remote_answer import RemoteAnswer
    from edge_vl.mqtt.remote_stream import RemoteStream

__all__ = ["BrokerSettings", "Client", "Fleet", "RemoteAnswer", "RemoteStream", "ask"]

_NEEDS = ("msgspec", "paho")
_INSTALL = "pip install 'edge-vl[mqtt]'"


def __getattr__(name: str) -> object:
    """Import what needs the extra only when somebody asks for it.

    Raises:
        ImportError: the extra is not installed; says how to install it.
    """
    try:
        if name == "Client":
            from edge_vl.mqtt.client import Client

            return Client
        if name == "Fleet":
            from edge_vl.mqtt.fleet import Fleet

            return Fleet
        if name == "RemoteAnswer":
            from edge_vl.mqtt.remote_answer import RemoteAnswer

            return RemoteAnswer
        if name == "RemoteStream":
            from edge_vl.mqtt.remote_stream import RemoteStream

            return RemoteStream
        if name == "ask":
            from edge_vl.mqtt.ask_once import ask

            return ask
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _NEEDS:
            raise ModuleNotFoundError(f"{error}; install it with: {_INSTALL}", name=error.name) from error
        raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

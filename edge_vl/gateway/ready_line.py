"""What a gateway says when it is ready, so that whoever has started it can try it. Pure."""

from __future__ import annotations

import shlex

from edge_vl.gateway.config import GatewayConfig

__all__ = ["ready_line"]

_USUAL_PREFIX = "edge_vl"


def ready_line(config: GatewayConfig, model: str) -> str:
    """Return one line: node, topics, model, cameras, and a command that asks something.

    Args:
        config: of the gateway.
        model: its name.
    """
    broker = config.broker
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    scheme = "mqtts" if broker.is_tls else "mqtt"
    prefix = "" if config.prefix == _USUAL_PREFIX else f"/{config.prefix}"
    names = [camera.name for camera in config.cameras]
    cameras = f"cameras {', '.join(names)}" if names else "no camera"
    about = f"--camera {names[0]}" if names else "--image picture.jpg"
    command = f"edge-vl mqtt ask {scheme}://{host}:{broker.port}{prefix} {config.node} {shlex.quote('What is there?')}"
    return (
        f"node {config.node}, topics {config.prefix}/{config.node}/..., model {model}, {cameras}; try: "
        f"{command} {about}"
    )

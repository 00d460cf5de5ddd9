"""`edge-vl gateway --demo`: a broker, a drawn camera and the bundled model, to try everything in a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable

from edge_vl.gateway.config import CameraConfig, GatewayConfig, WhenConfig
from edge_vl.gateway.demo_broker import DEFAULT_PORT, DemoBroker
from edge_vl.mqtt.broker_settings import BrokerSettings

__all__ = ["CAMERA", "NODE", "demo_config", "lines_to_try", "run_demo"]

NODE = "demo"
CAMERA = "scene"

_QUESTION = "Describe the picture."
_STATS_EVERY_S = 10.0


def run_demo(port: int | None = None, *, say: Callable[[str], object] | None = None) -> int:
    """Run the demo until it is interrupted. Call it on the main thread of a program of its own.

    Args:
        port: of the broker on the loopback interface; None: 1883, or any free one where that is taken.
        say: takes each line for the user; None: standard error.

    Returns:
        The exit code.

    Raises:
        BrokerError: the broker cannot be had.
        EdgeVLError: the bundled model cannot be opened.
    """
    tell = say if say is not None else lambda line: print(line, file=sys.stderr, flush=True)
    with DemoBroker(port) as broker:
        if broker.is_other_port:
            tell(f"edge-vl: port {DEFAULT_PORT} is taken by another broker, so {broker.port}; use the lines below")
        from edge_vl.gateway.service import run_gateway

        tell("edge-vl: loading the bundled model ...")

        def show() -> None:
            for line in lines_to_try(broker.port):
                tell(line)

        return run_gateway(demo_config(broker.port), on_ready=show)


def demo_config(port: int) -> GatewayConfig:
    """Return the gateway of the demo, on a broker of this machine."""
    camera = CameraConfig(
        name=CAMERA,
        source="synthetic",
        question=_QUESTION,
        every_s=2.0,
        when=(WhenConfig("red_circle", "Is there a red circle?", after=1),),
    )
    broker = BrokerSettings(port=port, protocol="3.1.1")
    return GatewayConfig(broker=broker, node=NODE, cameras=(camera,), stats_every_s=_STATS_EVERY_S)


def lines_to_try(port: int) -> list[str]:
    """Return what the user is told: commands for a second terminal, each to be copied as it stands."""
    url = f"mqtt://127.0.0.1:{port}"
    at = f"-p {port}"
    request = (
        '{"id":"\'$(date +%s)\'","client":"me","question":"Is there a blue square?","images":[{"camera":"scene"}]}'
    )
    return [
        "",
        f"The demo runs: gateway {NODE!r} with camera {CAMERA!r}, broker {url} (for this machine alone).",
        "Try in a second terminal:",
        "",
        f"  edge-vl mqtt status {url}",
        f'  edge-vl mqtt ask {url} {NODE} "What is at the top left?" --camera {CAMERA}',
        f"  edge-vl mqtt watch {url}",
        "",
        "or, with Debian's mosquitto-clients, the messages themselves:",
        "",
        f"  mosquitto_sub -R {at} -t 'edge_vl/{NODE}/camera/{CAMERA}/answer'",
        f"  mosquitto_sub -R {at} -t 'edge_vl/{NODE}/response/#' & sleep 1; mosquitto_pub {at} -q 1 "
        f"-t edge_vl/{NODE}/request -m '{request}'",
        "",
        "Ctrl-C ends it.",
    ]

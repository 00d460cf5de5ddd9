"""`edge-vl gateway`: answers questions that come over MQTT."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_vl.cli.exit_codes import ANSWERED, exit_code
from edge_vl.cli.output import errors_as_json
from edge_vl.errors import RequestError

if TYPE_CHECKING:
    from edge_vl.gateway.finding import Finding

__all__ = ["gateway"]


def gateway(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The gateway file.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Try model, folders, cameras and broker, say what was found, and leave.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print one JSON object.")] = False,
    remove_discovery: Annotated[
        bool, typer.Option("--remove-discovery", help="Make it disappear from Home Assistant, and leave.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run with a broker of its own and a drawn camera, and say what to try.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="With --demo: where its broker listens.", show_default=False)
    ] = None,
) -> None:
    """Answer questions about pictures and cameras over MQTT, until somebody stops it."""
    with errors_as_json(is_wanted=as_json):
        if demo:
            if config is not None or check or as_json or remove_discovery:
                raise RequestError("--demo takes no gateway file and no other option", field="demo")
            from edge_vl.gateway.demo import run_demo

            raise typer.Exit(run_demo(port))
        if port is not None:
            raise RequestError("--port goes with --demo; a gateway file says it in broker.url", field="port")
        if config is None:
            raise RequestError("a gateway needs its file: edge-vl gateway CONFIG.toml (or --demo)", field="config")
        if as_json and not check:
            raise RequestError("--json goes with --check", field="json")
        if remove_discovery and check:
            raise RequestError("--remove-discovery goes without --check", field="remove_discovery")
        if not check and not remove_discovery:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it serves, a stop needs no end in order
        from edge_vl.mqtt.paho_client import check_installed

        check_installed()
        from edge_vl.cli.event_loop import run_in_event_loop
        from edge_vl.gateway.gateway_file import read_gateway_file

        if remove_discovery:
            from edge_vl.home_assistant.removing import remove_discovery as remove

            for topic in run_in_event_loop(remove(read_gateway_file(config))):
                print(f"removed {topic}")
            return
        if not check:
            from edge_vl.gateway.service import run_gateway

            settings = read_gateway_file(config)
            _log_to_stderr()
            raise typer.Exit(run_gateway(settings))
        from edge_vl.gateway.check import check_gateway

        notes: list[str] = []
        findings = check_gateway(read_gateway_file(config, on_note=notes.append), notes, run=run_in_event_loop)
        shown = _as_json(findings) if as_json else _as_lines(findings)
    raise typer.Exit(next((exit_code(finding.error) for finding in shown if finding.error is not None), ANSWERED))


def _log_to_stderr() -> None:
    """Show what the gateway does, in a process of its own; not what the runtime says of each answer."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.getLogger("edge_vl").addHandler(handler)
    for part in ("gateway", "home_assistant", "mqtt", "sources"):
        logging.getLogger(f"edge_vl.{part}").setLevel(logging.INFO)


def _as_json(findings: Iterable[Finding]) -> Sequence[Finding]:
    found = list(findings)
    is_ready = all(finding.level != "problem" for finding in found)
    print(json.dumps({"is_ready": is_ready, "findings": [one.to_dict() for one in found]}, ensure_ascii=False))
    return found


def _as_lines(findings: Iterable[Finding]) -> Sequence[Finding]:
    found: list[Finding] = []
    for finding in findings:
        print(f"{finding.level:<8} {finding.subject}: {finding.text}", flush=True)
        found.append(finding)
    num_problems = sum(finding.level == "problem" for finding in found)
    print("ready" if not num_problems else f"not ready: {num_problems} problem{'s' * (num_problems > 1)}")
    return found

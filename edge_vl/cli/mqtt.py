"""`edge-vl mqtt`: questions to gateways over a broker, and what the broker tells of them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge_vl.cli.event_loop import run_in_event_loop
from edge_vl.cli.interrupt import normal_end
from edge_vl.cli.mqtt_extra import check_mqtt_extra
from edge_vl.cli.output import errors_as_json, print_notes
from edge_vl.cli.terminal_text import terminal_json, terminal_line, terminal_text
from edge_vl.errors import RequestError

if TYPE_CHECKING:
    from edge_vl.mqtt.broker_settings import BrokerSettings
    from edge_vl.mqtt.fleet import Gateway, Heard
    from edge_vl.mqtt.node_messages import Info
    from edge_vl.mqtt.remote_pictures import RemotePicture
    from edge_vl.mqtt.remote_stream import RemoteStream

__all__ = ["mqtt"]

_MAX_PASSWORD_BYTES = 4096

mqtt = typer.Typer(help="Ask gateways over MQTT, and see which are there.", no_args_is_help=True)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The broker: mqtt://user@host:port/prefix, mqtts:// with TLS, or just a host. "
        "The password comes from EDGE_VL_MQTT_PASSWORD or --password-file.",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option(help="File with the password on its first line.", rich_help_panel="Broker")
]
Ca = Annotated[Path | None, typer.Option("--ca", help="Trusted certificates, as PEM.", rich_help_panel="Broker")]
Cert = Annotated[Path | None, typer.Option("--cert", help="This client's certificate.", rich_help_panel="Broker")]
Key = Annotated[Path | None, typer.Option("--key", help="The certificate's key.", rich_help_panel="Broker")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@mqtt.command("ask")
def ask(
    url: Url,
    words: Annotated[
        list[str], typer.Argument(metavar="[NODE] QUESTION", help="The gateway, unless --group says; the question.")
    ],
    group: Annotated[str | None, typer.Option(help="Ask whichever gateway of this group is free.")] = None,
    camera: Annotated[list[str] | None, typer.Option(help="A camera of the gateway; its newest frame.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="A picture of this machine, sent along; may be given several times.")
    ] = None,
    no_picture: Annotated[
        bool, typer.Option("--no-picture", help="The question is about no picture, though the gateway has cameras.")
    ] = False,
    timeout_s: Annotated[float, typer.Option(help="Seconds until the whole answer must be there.")] = 60.0,
    max_frame_age_s: Annotated[float | None, typer.Option(help="Oldest frame that it may be about.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Name of a conversation at the gateway.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token; larger is freer.")] = 0.0,
    seed: Annotated[int, typer.Option(help="With a temperature: equal seeds give equal answers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="What the gateway knows you by, where the broker's rules go by that; default: the user in the URL.",
            rich_help_panel="Broker",
        ),
    ] = None,
    password_file: PasswordFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Ask a gateway a question; the answer streams to standard output."""
    with errors_as_json(is_wanted=as_json):
        if len(words) != (2 if group is None else 1):
            wanted = "URL NODE QUESTION" if group is None else "URL QUESTION --group GROUP"
            raise RequestError(f"mqtt ask takes: edge-vl mqtt ask {wanted}; put the question in quotes", field="words")
        settings, prefix = _broker(url, password_file, ca, cert, key)
        images: list[RemotePicture] = [{"camera": name} for name in camera or ()]
        images += image or ()
        if no_picture and images:
            raise RequestError("--no-picture goes with neither --camera nor --image", field="no_picture")
        from edge_vl.mqtt.client import Client

        node = words[0] if group is None else None
        may_lack_picture = bool(images) or no_picture or conversation is not None

        async def stream_answer() -> None:
            async with Client(settings, node=node, group=group, prefix=prefix, name=name) as client:
                if not may_lack_picture:
                    _check_cameras(await client.info())
                stream = client.ask(
                    words[-1],
                    images=images,
                    timeout_s=timeout_s,
                    conversation=conversation,
                    is_streamed=not as_json,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed,
                    max_frame_age_s=max_frame_age_s,
                )
                async with stream:
                    if as_json:
                        print(terminal_json(json.dumps((await stream.answer()).to_dict(), ensure_ascii=False)))
                        return
                    await _print_stream(stream)

        run_in_event_loop(stream_answer())


@mqtt.command("status")
def status(
    url: Url,
    as_json: AsJson = False,
    password_file: PasswordFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """List the gateways that the broker knows of, and what their cameras do."""
    with errors_as_json(is_wanted=as_json):
        settings, prefix = _broker(url, password_file, ca, cert, key)
        from edge_vl.mqtt.fleet import Fleet

        async def look() -> dict[str, Gateway]:
            async with Fleet(settings, prefix=prefix) as fleet:
                await fleet.settle()
                return fleet.gateways

        gateways = dict(sorted(run_in_event_loop(look()).items()))
        if as_json:
            known = {name: gateway.to_dict() for name, gateway in gateways.items()}
            print(terminal_json(json.dumps(known, ensure_ascii=False)))
            return
        if not gateways:
            print(f"the broker knows of no gateway under {prefix}/", file=sys.stderr)
        for name, gateway in gateways.items():
            _print_gateway(name, gateway)


@mqtt.command("watch")
def watch(
    url: Url,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    password_file: PasswordFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Follow what cameras see, line by line, until Ctrl-C (or SIGTERM), the normal end: the exit code is 0."""
    with errors_as_json(is_wanted=as_json):
        settings, prefix = _broker(url, password_file, ca, cert, key)
        from edge_vl.mqtt.fleet import Fleet

        async def follow() -> None:
            async with Fleet(settings, prefix=prefix) as fleet:
                async for heard in fleet.heard():
                    print(_as_json(heard) if as_json else _as_line(heard), flush=True)

        with normal_end():
            run_in_event_loop(follow())


async def _print_stream(stream: RemoteStream) -> None:
    """Print an answer as it comes; whatever ends it, its line ends, too."""
    try:
        async for text in stream:
            print(terminal_text(text), end="", flush=True)
    except BaseException:
        if stream.text:
            print(flush=True)
        raise
    print(flush=True)
    answer = await stream.answer()
    if not answer.is_consistent:
        print_notes([f"the gateway's last message has another text: {terminal_text(answer.text)}"])


def _check_cameras(info: Info | None) -> None:
    """See that a question without a picture does not go to a model that would make one up.

    Raises:
        RequestError: the gateway has a model that sees, and cameras.
    """
    if info is not None and info.vision_engine and info.cameras:
        raise RequestError(
            f"no picture was given; the cameras are: {', '.join(info.cameras)}; name one by --camera, send a file by "
            "--image, or say --no-picture",
            field="camera",
        )


def _broker(
    url: str, password_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None
) -> tuple[BrokerSettings, str]:
    from edge_vl.mqtt.broker_url import read_broker_url

    settings, prefix = read_broker_url(url, ca=ca, cert=cert, key=key)
    if password_file is not None and settings.username is None:
        raise RequestError("there is a password but no user: write it as mqtt://user@host", field="url")
    if settings.username is not None:
        settings = dataclasses.replace(settings, password=_password(password_file))
    check_mqtt_extra()
    return settings, prefix or "edge_vl"


def _password(file: Path | None) -> str | None:
    if file is None:
        from edge_vl.environment import mqtt_password

        return mqtt_password()
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_PASSWORD_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:  # without the path, which may be the password itself
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"the password file cannot be read: {why}", field="password_file") from None
    return text.partition("\n")[0].rstrip("\r")


def _print_gateway(name: str, gateway: Gateway) -> None:
    info = gateway.info
    about = ""
    if info is not None:
        about = f"  {info.model}, profile {info.profile}, edge-vl {info.version}, MQTT {info.protocol}"
        about += f", group {info.group}" if info.group else ""
    print(terminal_line(f"{name}: {gateway.status or 'unknown'}{about}"))
    for camera, state in sorted(gateway.cameras.items()):
        if gateway.status != "online":
            print(terminal_line(f"  {camera}: unknown, last {state.status} ({state.at})"))
            continue
        size = f" {state.width}x{state.height}" if state.width else ""
        rate = f" at {state.fps:.1f} frames/s" if state.status == "online" else ""
        reason = f" ({state.reason})" if state.reason else ""
        question = f"  {state.question!r}" if state.question else ""
        print(terminal_line(f"  {camera}: {state.status}{size}{rate}{reason}{question}"))


def _as_json(heard: Heard) -> str:
    import msgspec

    return terminal_json(json.dumps({"node": heard.node, **msgspec.to_builtins(heard.message)}, ensure_ascii=False))


def _as_line(heard: Heard) -> str:
    """Write what was heard on one line."""
    from edge_vl.mqtt.node_messages import CameraAnswer

    message = heard.message
    if isinstance(message, CameraAnswer):
        text = f"{message.text} (frame {message.frame.age_ms / 1000:.2f} s old)"
    elif message.type == "when":
        text = f"{message.name}: {'yes' if message.value else 'no'}"
    elif message.error is not None:
        text = f"error: {message.error.message}"
    else:
        text = f"{message.type} {message.reason}"
    return terminal_line(f"{message.at}  {heard.node}/{message.camera}  {' '.join(text.split())}")

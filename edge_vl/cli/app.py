"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_vl.cli.ask import ask
from edge_vl.cli.cameras import cameras
from edge_vl.cli.chat import chat
from edge_vl.cli.doctor import doctor
from edge_vl.cli.gateway import gateway
from edge_vl.cli.models import models
from edge_vl.cli.mqtt import mqtt
from edge_vl.cli.profiles import profiles
from edge_vl.cli.tune import tune
from edge_vl.cli.verify import verify
from edge_vl.cli.watch import watch

__all__ = ["app"]

app = typer.Typer(
    name="edge-vl",
    help="Ask vision-language models about pictures, on this device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and leave.", is_eager=True, callback=lambda value: _version(value)
        ),
    ] = False,
) -> None:
    """Ask vision-language models about pictures, on this device."""


def _version(is_wanted: bool) -> None:
    if is_wanted:
        from edge_vl import __version__

        typer.echo(f"edge-vl {__version__}")
        raise typer.Exit


app.command()(ask)
app.command()(cameras)
app.command()(chat)
app.command()(watch)
app.add_typer(models, name="models")
app.add_typer(profiles, name="profiles")
app.command()(gateway)
app.add_typer(mqtt, name="mqtt")
app.command()(doctor)
app.command()(tune)
app.command()(verify)

"""`edge-vl profiles`: device profiles, and what they mean for this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from edge_vl.cli import options

__all__ = ["profiles"]

profiles = typer.Typer(help="Show the device profiles and what they choose.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@profiles.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List the device profiles; a star marks the one that is meant for this machine."""
    from edge_vl.machine import read_machine
    from edge_vl.profile_library import list_profiles
    from edge_vl.profile_match import best_match, match_profile

    found = list_profiles()
    machine = read_machine()
    best = best_match([match_profile(profile, machine) for profile in found])
    chosen = "" if best is None else best.profile.id
    if as_json:
        rows = [
            {
                "id": profile.id,
                "name": profile.name,
                "path": str(profile.path),
                "is_shipped": profile.is_shipped,
                "is_chosen": profile.id == chosen,
            }
            for profile in found
        ]
        print(json.dumps(rows, ensure_ascii=False))
        return
    for profile in found:
        source = "" if profile.is_shipped else f"  {profile.path}"
        print(f"{'*' if profile.id == chosen else ' '} {profile.id:<22} {profile.name}{source}")


@profiles.command("show")
def show(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="An id, or the path of a .toml file.")],
    as_json: AsJson = False,
) -> None:
    """Show what a profile says, and where each value is from."""
    from edge_vl.profile_library import find_profile, list_profiles
    from edge_vl.profile_report import profile_lines, profile_values

    found = find_profile(profile, list_profiles())
    if as_json:
        print(json.dumps(profile_values(found), ensure_ascii=False))
    else:
        print("\n".join(profile_lines(found)))


@profiles.command("explain")
def explain(
    device_file: Annotated[
        Path | None, typer.Option("--device", help="A TOML file that describes another device.", metavar="FILE")
    ] = None,
    model: options.Model = "bundled",
    profile: options.Profile = "auto",
    vision_engine: options.VisionEngine = "auto",
    language_engine: options.LanguageEngine = "auto",
    vision_dtype: options.VisionDtype = "auto",
    language_dtype: options.LanguageDtype = "auto",
    as_json: AsJson = False,
) -> None:
    """Show every profile and engine that was tried, and why it was taken or not.

    With --device, the profile is chosen for that device; engines are looked for on this machine all the same.
    """
    from edge_vl.device_file import read_device
    from edge_vl.models import find_model
    from edge_vl.profile_choice import consider
    from edge_vl.profile_decision import Wishes
    from edge_vl.profile_report import decision_lines, decision_values

    wishes = Wishes(profile, vision_engine, language_engine, vision_dtype, language_dtype)
    machine = None if device_file is None else read_device(device_file)
    decision = consider(find_model(model), wishes, machine)
    if as_json:
        print(json.dumps(decision_values(decision), ensure_ascii=False))
    else:
        print("\n".join(decision_lines(decision)))

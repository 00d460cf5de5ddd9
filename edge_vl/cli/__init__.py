"""The command `edge-vl`."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

__all__ = ["main", "run"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run())


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
    raise KeyboardInterrupt


def run(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what stands behind `edge-vl`; None: the process's own.

    Returns:
        The exit code.
    """
    import click

    from edge_vl.cli.app import app
    from edge_vl.cli.exit_codes import CANCELLED, INTERNAL, USAGE, exit_code
    from edge_vl.errors import EdgeVLError

    try:
        result = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except EdgeVLError as error:
        print(f"edge-vl: {error}", file=sys.stderr)
        return exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        print("\nedge-vl: cancelled", file=sys.stderr)
        return CANCELLED
    except click.ClickException as error:
        error.show()
        return USAGE
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANCELLED
    except Exception:  # the last border: a defect of ours, which its finder can report
        traceback.print_exc()
        print("edge-vl: this is a defect of edge-vl; please report the lines above", file=sys.stderr)
        return INTERNAL
    return result if isinstance(result, int) else 0

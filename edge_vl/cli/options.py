"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "KV",
    "ContextLength",
    "DeadlineS",
    "Degrade",
    "LanguageDtype",
    "LanguageEngine",
    "MaxTokens",
    "MemoryBudgetMib",
    "Mode",
    "Model",
    "Profile",
    "Seed",
    "Stop",
    "Temperature",
    "Threads",
    "TopP",
    "TracePath",
    "VisionDtype",
    "VisionEngine",
    "WaterfallPath",
]

Model = Annotated[str, typer.Option(help="A model's short name, or its folder.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens of the answer.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most likely token; larger is freer.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")]
Seed = Annotated[int, typer.Option(help="With a temperature: equal seeds give equal answers.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the answer; may be given several times.")]
DeadlineS = Annotated[
    float | None,
    typer.Option(help="Seconds from the question, the model being loaded, until the whole answer must be there."),
]
Degrade = Annotated[
    bool, typer.Option(help="See the picture in fewer tiles where the deadline would not hold otherwise.")
]
Profile = Annotated[
    str,
    typer.Option(help="Device profile: auto, an id, or the path of a .toml file.", rich_help_panel="Engines"),
]
VisionEngine = Annotated[str, typer.Option(help="Engine of the vision encoder.", rich_help_panel="Engines")]
LanguageEngine = Annotated[str, typer.Option(help="Engine of the language model.", rich_help_panel="Engines")]
VisionDtype = Annotated[
    str, typer.Option(help="Precision of the vision encoder: fp32, fp16, int8, ...", rich_help_panel="Engines")
]
LanguageDtype = Annotated[str, typer.Option(help="Precision of the language model.", rich_help_panel="Engines")]
KV = Annotated[
    str,
    typer.Option(
        help="Precision of the KV cache: auto, f32, f16, int8, int4, k8v4 (keys, values), or parts such as "
        "text=int8,image=int4,first_layers=int8,last_layers=int8. From int8 on, answers may change.",
        rich_help_panel="Engines",
    ),
]
ContextLength = Annotated[
    int | None,
    typer.Option(
        help="Most tokens of prompt and answer; default: what the profile and the model allow.",
        rich_help_panel="Engines",
    ),
]
MemoryBudgetMib = Annotated[
    int | None,
    typer.Option(
        help="Memory that the model may take, in MiB; default: what the profile allows. Never more than is free.",
        rich_help_panel="Engines",
    ),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each engine.", rich_help_panel="Engines")]
Mode = Annotated[
    Literal["profile", "auto", "serial", "interleaved", "overlapped"],
    typer.Option(
        help="How seeing and speaking take turns: auto learns what is fastest; profile: as the device profile says.",
        rich_help_panel="Engines",
    ),
]
TracePath = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what was done when, as JSON that ui.perfetto.dev opens.",
        show_default=False,
    ),
]
WaterfallPath = Annotated[
    Path | None,
    typer.Option("--waterfall", metavar="FILE", help="Draw what was done when, as SVG.", show_default=False),
]

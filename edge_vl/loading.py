"""Loading: which engine runs each lane, and both lanes brought up together."""

from __future__ import annotations

from contextlib import suppress

from edge_vl.engine import Engine, LaneOptions, LanguageModel, VisionEncoder
from edge_vl.errors import ModelError
from edge_vl.lane import Lane
from edge_vl.model_spec import ModelSpec
from edge_vl.registry import engine_named, first_available
from edge_vl.serial import Lanes

__all__ = ["choose_engine", "load_lanes"]


def choose_engine(engine: str | Engine) -> Engine:
    """Return the engine that is meant by a name, by `auto` or by itself.

    Raises:
        EngineNotFound: no such engine.
        EngineUnavailable: it cannot be imported, or for `auto`: none can run.
    """
    if not isinstance(engine, str):
        return engine
    return first_available() if engine == "auto" else engine_named(engine)


def load_lanes(
    model: ModelSpec,
    vision_engine: Engine,
    language_engine: Engine,
    vision_options: LaneOptions,
    language_options: LaneOptions,
) -> Lanes:
    """Start both lanes, load on each what it will run, and check that the two fit together.

    Raises:
        ModelError: the files do not fit, or the two lanes do not fit each other.
        EngineUnavailable: a backend is missing.
    """
    vision_lane, language_lane = Lane("vision"), Lane("language")
    vision: VisionEncoder | None = None
    language: LanguageModel | None = None
    try:
        loading = vision_lane.submit(vision_engine.load_vision, model, vision_options)
        try:
            language = language_lane.submit(language_engine.load_language, model, language_options).result()
        finally:
            vision = loading.result()
        if vision.spec.hidden_size != language.spec.hidden_size:
            raise ModelError(
                f"the vision encoder makes image embeds {vision.spec.hidden_size} wide "
                f"and the language model takes {language.spec.hidden_size}: they are not of one model",
                file=str(model.path),
            )
    except BaseException:
        with suppress(RuntimeError):
            if vision is not None:
                vision_lane.submit(vision.close)
            if language is not None:
                language_lane.submit(language.close)
        vision_lane.close()
        language_lane.close()
        raise
    return Lanes(model.name, vision, vision_lane, language, language_lane)

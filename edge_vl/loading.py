"""Loading: both lanes brought up together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from edge_vl.engine import Engine, LaneOptions, LanguageModel, PictureCutter, VisionEncoder
from edge_vl.errors import EdgeVLError, EngineFault, ModelError
from edge_vl.families.native import Native
from edge_vl.lane import Lane
from edge_vl.lanes import Lanes
from edge_vl.model_spec import ModelSpec
from edge_vl.profile_decision import Decision

__all__ = ["load_lanes", "native_family"]

Loaded = TypeVar("Loaded")


def load_lanes(model: ModelSpec, decision: Decision) -> Lanes:
    """Start both lanes, load on each what it will run, and check that the two fit together.

    Args:
        model: what to load.
        decision: which engine loads which lane, and how.

    Raises:
        ModelError: the files do not fit, or the two lanes do not fit each other.
        EngineUnavailable: a backend is missing.
    """
    sees, speaks = decision.vision, decision.language
    vision_lane, language_lane = Lane("vision"), Lane("language")
    vision: VisionEncoder | None = None
    language: LanguageModel | None = None
    try:
        loading = None
        if sees is not None:
            loading = vision_lane.submit(_load, sees.engine, sees.engine.load_vision, model, sees.options)
        try:
            language = language_lane.submit(
                _load, speaks.engine, speaks.engine.load_language, model, speaks.options
            ).result()
        finally:
            vision = None if loading is None else loading.result()
        if vision is not None:
            _check_fit(model, vision, language)
    except BaseException:
        with suppress(RuntimeError):
            if vision is not None:
                vision_lane.submit(vision.close)
            if language is not None:
                language_lane.submit(language.close)
        vision_lane.close()
        language_lane.close()
        raise
    return Lanes(
        model.name,
        vision,
        vision_lane,
        language,
        language_lane,
        decision.profile.id,
        (*decision.notes, *language.spec.warnings),
        load_vision=None if sees is None else partial(_load, sees.engine, sees.engine.load_vision, model, sees.options),
        load_language=partial(_load, speaks.engine, speaks.engine.load_language, model, speaks.options),
    )


def native_family(model: ModelSpec, lanes: Lanes) -> Native:
    """Return the layout of a model that only its engine knows.

    Raises:
        ModelError: the engine of the vision lane cannot cut pictures for it, or its template is not valid.
    """
    vision = lanes.vision
    if vision is not None and not isinstance(vision, PictureCutter):
        raise ModelError(
            f"{model.name}: engine {vision.spec.engine!r} cannot cut pictures for model type "
            f"{model.config.get('model_type')!r}; let the engine of its GGUF files see, too",
            file=str(model.path),
        )
    return Native(model, vision, lanes.language.spec.rollback)


def _check_fit(model: ModelSpec, vision: VisionEncoder, language: LanguageModel) -> None:
    """Refuse two lanes that are not of one model.

    Raises:
        ModelError: it says what differs.
    """
    sees, speaks = vision.spec, language.spec
    if sees.hidden_size != speaks.hidden_size:
        raise ModelError(
            f"the vision encoder ({sees.engine}: {sees.file}) makes image embeds {sees.hidden_size} wide and the "
            f"language model ({speaks.engine}: {speaks.file}) takes {speaks.hidden_size}: they are not of one model",
            file=sees.file or str(model.path),
        )


def _load(
    engine: Engine, load: Callable[[ModelSpec, LaneOptions], Loaded], model: ModelSpec, options: LaneOptions
) -> Loaded:
    """Load one lane; whatever an engine raises that is not an error of ours becomes its fault."""
    try:
        return load(model, options)
    except EdgeVLError:
        raise
    except BaseException as error:
        raise EngineFault(engine.name, "load", f"{type(error).__name__}: {error}") from error

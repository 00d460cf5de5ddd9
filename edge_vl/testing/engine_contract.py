"""What every engine must do, as a suite that a plugin's own tests inherit.

```python
class TestMyEngine(EngineContract):
    def engine(self) -> Engine:
        return my_engine

    def model(self) -> ModelSpec:
        return read_model_spec(Path("tests/tiny_model"))
```

pytest collects the inherited tests. Each loads, uses and closes what it needs, so a tiny model is best.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from edge_vl.engine import Engine, LaneOptions
from edge_vl.errors import EngineError, EngineFault, ModelError
from edge_vl.testing.contract_subject import expect, skip
from edge_vl.testing.language_contract import LanguageContract
from edge_vl.testing.vision_contract import VisionContract

__all__ = ["EngineContract"]


class EngineContract(VisionContract, LanguageContract):
    """Inherit, say which engine and model, and run pytest."""

    def test_contract_the_name_is_short_and_the_status_never_raises(self) -> None:
        """An engine says what it is called and whether it can run."""
        engine = self.engine()
        assert isinstance(engine, Engine)
        assert engine.name
        assert engine.name == engine.name.strip().lower()
        assert engine.status().is_available, engine.status().reason

    def test_contract_a_model_is_described_in_json_without_being_loaded(self) -> None:
        """`describe` returns plain facts."""
        facts = self.engine().describe(self.model())
        assert json.loads(json.dumps(dict(facts))) == dict(facts)

    def test_contract_everything_closes_twice_and_is_refused_afterwards(self) -> None:
        """A closed thing raises, and never crashes."""
        if self.has_vision:
            vision = self.engine().load_vision(self.model(), self.options())
            unit = self.make_unit(vision, 0)
            vision.close()
            vision.close()
            with expect(EngineFault):
                vision.encode(unit)
        if self.has_language:
            language = self.engine().load_language(self.model(), self.options())
            cache = language.new_cache()
            spare = language.new_cache()
            cache.close()
            cache.close()
            with expect(EngineFault):
                language.decode(cache, self.token_ids(1)[0])
            language.close()
            language.close()
            with expect(EngineFault):
                language.decode(spare, self.token_ids(1)[0])
            spare.close()

    def test_contract_it_works_on_one_permanent_thread_that_did_not_import_it(self) -> None:
        """The runtime loads, uses and closes an engine's objects on its lanes."""

        def work() -> None:
            if self.has_vision:
                with self.open_vision() as vision:
                    vision.encode(self.make_unit(vision, 0))
            if self.has_language:
                with self.open_language() as language:
                    cache = language.new_cache()
                    self.prefill(language, cache, self.make_prompt(language))
                    language.decode(cache, self.token_ids(1)[0])
                    cache.close()

        with ThreadPoolExecutor(1) as lane:
            lane.submit(work).result()

    def test_contract_a_device_that_is_not_there_is_refused(self) -> None:
        """It never runs silently on another."""
        options = LaneOptions(device="abacus")
        for has_it, load in (
            (self.has_vision, self.engine().load_vision),
            (self.has_language, self.engine().load_language),
        ):
            if has_it:
                with expect(EngineError):
                    load(self.model(), options)

    def test_contract_a_broken_model_is_a_model_error(self) -> None:
        """Missing or broken files are told apart from a missing backend."""
        model = self.broken_model()
        if model is None:
            skip("the engine reads no files")
        if self.has_vision:
            with expect(ModelError):
                self.engine().load_vision(model, self.options())
        if self.has_language:
            with expect(ModelError):
                self.engine().load_language(model, self.options())

"""Tests of the JSON schemas and the AsyncAPI document."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from edge_vl.mqtt.async_api import async_api
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.message_examples import EXAMPLES
from edge_vl.mqtt.reading import BadPayload, read_cancel, read_request
from edge_vl.mqtt.schemas import TYPES, documents, schema
from edge_vl.mqtt.topics import MAX_LEVELS, GroupTopics, NodeTopics
from edge_vl.mqtt.yaml_writing import to_yaml

DOCS = Path(__file__).parents[2] / "docs" / "mqtt"
VALIDATORS = {name: Draft202012Validator(schema(name)) for name in TYPES}
PAIRS = [(name, example) for name, examples in EXAMPLES.items() for example in examples]


def test_the_documents_are_those_that_the_types_make() -> None:
    made = dict(documents())
    assert {path.name for path in DOCS.iterdir()} == set(made)
    for name, content in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == content, "run: python -m edge_vl.mqtt.schemas docs/mqtt"


@pytest.mark.parametrize("name", list(TYPES))
def test_every_schema_is_one_of_draft_2020_12(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize(("name", "example"), PAIRS)
def test_every_example_is_valid_and_read_as_what_it_was(name: str, example: msgspec.Struct) -> None:
    written = encode(example)
    VALIDATORS[name].validate(json.loads(written))
    assert msgspec.json.decode(written, type=TYPES[name]) == example


@pytest.mark.parametrize(("name", "example"), PAIRS)
def test_no_example_is_valid_once_something_that_must_be_there_is_not(name: str, example: msgspec.Struct) -> None:
    content = json.loads(encode(example))
    made = schema(name)
    kinds = [made, *made.get("$defs", {}).values()]
    required = next(kind["required"] for kind in kinds if kind.get("title") == type(example).__name__)
    assert required
    for key in required:
        assert not VALIDATORS[name].is_valid({inner: value for inner, value in content.items() if inner != key}), key


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("request", "cancel")])
def test_what_a_gateway_writes_is_all_described(name: str) -> None:
    made = schema(name)
    kinds = {kind["title"]: kind for kind in [made, *made.get("$defs", {}).values()] if "properties" in kind}
    for example in EXAMPLES[name]:
        assert set(json.loads(encode(example))) == set(kinds[type(example).__name__]["properties"])


GOOD = json.loads(encode(EXAMPLES["request"][1]))
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, 0, 1, -1, 1.5, 100, 101, 2**63, 86_400_000, 86_400_001, "", " ", "a", "a b", "x" * 65]
    ),
    st.sampled_from([[], {}, ["a"], [{}], [{"camera": "a"}], [{"camera": "a", "file": None}], [{"file": ""}]]),
    st.sampled_from([[{"camera": "a", "topic": "b"}], [{"camera": "a"}] * 16, [{"camera": "a"}] * 17, {"a": 1}]),
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*GOOD, "v", "schema", "more"]), VALUES, max_size=3),
    st.sets(st.sampled_from([*GOOD])),
)
def test_the_schema_takes_a_request_if_and_only_if_the_gateway_does(
    changes: dict[str, Any], left_out: set[str]
) -> None:
    content = {**{key: value for key, value in GOOD.items() if key not in left_out}, **changes}
    try:
        read_request(json.dumps(content).encode(), max_tokens=32_768)
        is_read = True
    except BadPayload:
        is_read = False
    assert VALIDATORS["request"].is_valid(content) == is_read


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["id", "v", "more"]), VALUES, max_size=3))
def test_the_schema_takes_a_cancel_if_and_only_if_the_gateway_does(content: dict[str, Any]) -> None:
    try:
        read_cancel(json.dumps(content).encode())
        is_read = True
    except BadPayload:
        is_read = False
    assert VALIDATORS["cancel"].is_valid(content) == is_read


def channels() -> dict[str, Any]:
    made: dict[str, Any] = async_api()["channels"]
    return made


def test_every_topic_of_the_contract_is_a_channel() -> None:
    node, group = NodeTopics("{prefix}", "{node}"), GroupTopics("{prefix}", "{group}")
    topics = {
        *(node.status, node.info, node.stats, node.request, node.cancel),
        *(node.response("{client}", "{id}"), node.image("{client}", "{id}"), node.action("{name}")),
        *(group.request, group.cancel, group.claims),
    }
    parts = ("state", "event", "answer", "answer/last", "snapshot", "{setting}/set", "{setting}/state")
    topics |= {node.camera("{camera}", part) for part in parts}
    assert {channel["address"] for channel in channels().values()} == topics
    assert all(len(f"two/{topic}".split("/")) <= MAX_LEVELS + 1 for topic in topics)


def test_every_channel_names_its_parameters_and_every_reference_leads_somewhere() -> None:
    document = async_api()
    for channel in channels().values():
        assert set(channel["parameters"]) == set(re.findall(r"{(\w+)}", channel["address"]))
    references = re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document))
    assert references
    for reference in references:
        target: Any = document
        for part in reference.split("/"):
            target = target[part]


def test_retained_and_quality_of_service_are_as_the_contract_says() -> None:
    document = async_api()
    bindings = {
        (document["channels"][one["channel"]["$ref"].rpartition("/")[2]]["address"], one["action"]): one["bindings"][
            "mqtt"
        ]
        for one in document["operations"].values()
    }
    retained = {address for (address, _), binding in bindings.items() if binding.get("retain")}
    camera = "{prefix}/{node}/camera/{camera}"
    assert retained == {
        "{prefix}/{node}/status",
        "{prefix}/{node}/info",
        f"{camera}/state",
        f"{camera}/answer/last",
        f"{camera}/{{setting}}/state",
    }
    assert {address for (address, _), one in bindings.items() if one["qos"] == 0} == {
        "{prefix}/{node}/stats",
        f"{camera}/snapshot",
    }


def test_the_yaml_is_the_document() -> None:
    assert yaml.safe_load((DOCS / "asyncapi.yaml").read_text(encoding="utf-8")) == async_api()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "on", "no", "1", "a: b", "- x", "é", "#", ""]), JSON_VALUES, min_size=1, max_size=4
    )
)
def test_yaml_says_what_json_says(value: dict[str, Any]) -> None:
    before = copy.deepcopy(value)
    assert json.dumps(yaml.safe_load(to_yaml(value)), sort_keys=True) == json.dumps(before, sort_keys=True)

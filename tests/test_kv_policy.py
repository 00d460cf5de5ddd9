"""KV policies: what may be said, what it means for each layer, and the words that refuse the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl import RequestError
from edge_vl.engine import LaneOptions
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import (
    MAX_LOGIT_ERROR,
    KVPolicy,
    KVPrecision,
    LayerGuard,
    Precision,
    TokenKind,
    guarded_layers,
    parse_kv_policy,
)
from edge_vl_kernels.kv_format import PRECISIONS

F16, INT8, INT4, K8V4 = (
    KVPrecision("f16", "f16"),
    KVPrecision("int8", "int8"),
    KVPrecision("int4", "int4"),
    KVPrecision("int8", "int4"),
)

precisions = st.builds(KVPrecision, st.sampled_from(get_args(Precision)), st.sampled_from(get_args(Precision)))
guards: st.SearchStrategy[LayerGuard | Literal["auto"] | None] = st.one_of(
    st.none(), st.just("auto"), st.builds(LayerGuard, precisions, st.integers(1, 40))
)
policies = st.builds(KVPolicy, st.none() | precisions, st.none() | precisions, guards, guards)


@pytest.mark.parametrize(
    ("said", "policy"),
    [
        ("auto", KVPolicy()),
        ("f32", KVPolicy(KVPrecision("f32", "f32"))),
        ("int8", KVPolicy(INT8)),
        (" INT4 ", KVPolicy(INT4)),
        (" AUTO ", KVPolicy()),
        ("text=INT4,first_layers=AUTO,last_layers=None", KVPolicy(INT4, None, "auto", None)),
        ("text=int4,first_layers=INT8X2", KVPolicy(INT4, None, LayerGuard(INT8, 2))),
        ("k8v4", KVPolicy(K8V4)),
        ("int8/int4", KVPolicy(K8V4)),
        ("k16v8", KVPolicy(KVPrecision("f16", "int8"))),
        ("text=int8,image=int4", KVPolicy(INT8, INT4)),
        ("image = int4", KVPolicy(None, INT4)),
        ("text=int4, first_layers=int8x2, last_layers=none", KVPolicy(INT4, None, LayerGuard(INT8, 2), None)),
        ("text=int4,first_layers=k8v4,last_layers=auto", KVPolicy(INT4, None, LayerGuard(K8V4))),
        ({"text": "int8", "image": "k8v4"}, KVPolicy(INT8, K8V4)),
        ({}, KVPolicy()),
        (KVPolicy(INT8), KVPolicy(INT8)),
    ],
)
def test_a_policy_is_a_name_or_its_parts(said: Any, policy: KVPolicy) -> None:
    assert parse_kv_policy(said) == policy


@pytest.mark.parametrize(("old", "new"), [("fp32", "f32"), ("fp16", "f16"), ("q8_0", "int8"), ("q4_0", "int4")])
def test_the_names_of_other_tools_mean_the_same(old: str, new: str) -> None:
    assert parse_kv_policy(old) == parse_kv_policy(new)
    assert parse_kv_policy(f"text={old},last_layers={old}") == parse_kv_policy(f"text={new},last_layers={new}")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("int5", "kv is 'int5'; did you mean 'int8'"),
        ("", "expected auto, f32, f16, int8, int4, k8v4, or parts such as"),
        ("int8/int4/int4", "expected auto"),
        ("k8v2", "did you mean 'k8v4'"),
        ("k12v8", "expected auto"),
        ("text=int8,image", "'image' is no part; write text=int8,image=int4"),
        ("text=int8,text=int4", "says 'text' twice"),
        ("txt=int8", "kv has no part 'txt'; did you mean 'text'"),
        ("text=int8,colour=int4", "known: text, image, first_layers, last_layers"),
        ("image=auto", "leave it out for image tokens to be kept as text is"),
        ("first_layers=int8x0", "kv.first_layers: a layer guard covers at least 1 layer"),
        ("first_layers=int8x00", "a layer guard covers at least 1 layer; 'none' is for no guard"),
        ("first_layers=int8x\u0662", "with a number of layers: int8x2; or none, or auto"),
        ("image=AUTO", "leave it out for image tokens to be kept as text is"),
        ("first_layers=int8xx", "with a number of layers: int8x2; or none, or auto"),
        ("last_layers=2", "kv.last_layers is '2'"),
        ("image=int5", "kv.image is 'int5'; did you mean 'int8'"),
        ({"text": 8}, "kv.text must be text such as 'int8', not a int"),
        ({"texts": "int8"}, "did you mean 'text'"),
        (8, "kv must be auto, f32"),
        (None, "not a NoneType"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_would_be(said: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_kv_policy(said)
    assert words in str(caught.value)
    assert caught.value.field == "kv"


@given(policies)
def test_the_name_of_a_policy_is_read_back_to_one_that_does_the_same(policy: KVPolicy) -> None:
    found = parse_kv_policy(policy.name)
    assert found.name == policy.name
    assert found.is_auto == policy.is_auto == (policy.name == "auto")
    assert (found.wants_errors, found.has_guards) == (policy.wants_errors, policy.has_guards)
    for kind in get_args(TokenKind):
        for own in ("f32", "f16"):
            assert found.layers(5, kind, own=own, guarded=range(5)) == policy.layers(5, kind, own=own, guarded=range(5))


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        policy = parse_kv_policy(text)
    except RequestError:
        return
    assert parse_kv_policy(policy.name).name == policy.name


def test_auto_leaves_everything_to_the_engine_and_never_compresses() -> None:
    policy = LaneOptions().kv
    assert policy.is_auto
    assert not policy.is_compressed
    assert policy.layers(2, own="f16") == (F16, F16)
    assert policy.layers(1, "image", guarded=(0,)) == (KVPrecision("f32", "f32"),)


def test_image_tokens_may_be_kept_in_another_precision() -> None:
    policy = parse_kv_policy("text=int8,image=int4")
    assert policy.differs_by_kind
    assert (policy.layers(2), policy.layers(2, "image")) == ((INT8, INT8), (INT4, INT4))
    assert parse_kv_policy("image=int4").layers(1, own="f16") == (F16,)
    assert not parse_kv_policy("text=int8,image=int8").differs_by_kind


def test_guards_hold_for_layers_at_the_ends_and_for_every_kind_of_token() -> None:
    policy = parse_kv_policy("text=k8v4,image=int4,first_layers=f16,last_layers=int8x2")
    assert policy.layers(5) == (F16, K8V4, K8V4, INT8, INT8)
    assert policy.layers(5, "image") == (F16, INT4, INT4, INT8, INT8)
    assert policy.layers(2) == (F16, INT8)
    assert policy.layers(1) == (F16,), "both ends guard it, and the finer one holds"


def test_a_layer_whose_error_is_too_large_is_kept_in_int8_where_guards_are_auto() -> None:
    errors = [4.0, 0.2, MAX_LOGIT_ERROR, 0.3, math.nan, 7.0]
    guarded = guarded_layers(errors)
    assert guarded == (0, 4, 5)
    assert parse_kv_policy("int4").layers(6, guarded=guarded) == (INT8, INT4, INT4, INT4, INT8, INT8)
    for_first = parse_kv_policy("text=int4,last_layers=none")
    assert for_first.layers(6, guarded=guarded) == (INT8, INT4, INT4, INT4, INT4, INT4)
    none = parse_kv_policy("text=int4,first_layers=none,last_layers=none")
    assert none.layers(6, guarded=guarded) == (INT4,) * 6
    assert guarded_layers(errors, max_error=5.0) == (4, 5)
    assert guarded_layers([]) == ()


def test_a_layer_that_8_bits_would_not_help_is_not_guarded() -> None:
    assert guarded_layers([4.0, 4.0, 0.1], guarded_errors=[0.2, 5.0, 9.0]) == (0,)
    assert guarded_layers([math.nan], guarded_errors=[math.nan]) == (0,)


def test_the_layer_in_the_middle_may_be_guarded_by_either_end() -> None:
    for end in ("first_layers", "last_layers"):
        assert parse_kv_policy(f"text=int4,{end}=none").layers(3, guarded=(1,))[1] == INT8


def test_an_automatic_guard_never_makes_a_layer_coarser() -> None:
    assert parse_kv_policy("text=f16,image=int4").layers(1, guarded=(0,)) == (F16,)
    mixed = KVPolicy(KVPrecision("int4", "f16"))
    assert mixed.layers(1, guarded=(0,)) == (KVPrecision("int8", "f16"),)


@pytest.mark.parametrize(
    ("said", "is_wanted"),
    [
        ("int4", True),
        ("text=int8,image=int4", True),
        ("text=int4,last_layers=int8", True),
        ("text=int4,first_layers=int8,last_layers=none", False),
        ("k8v4", False),
        ("int8", False),
        ("auto", False),
    ],
)
def test_errors_are_measured_only_where_keys_of_4_bits_may_be_guarded(said: str, is_wanted: bool) -> None:
    assert parse_kv_policy(said).wants_errors is is_wanted


@pytest.mark.parametrize(
    ("said", "is_compressed"),
    [("f16", False), ("text=f32,image=f16", False), ("k16v8", True), ("image=int4", True), ("first_layers=int8", True)],
)
def test_a_policy_says_whether_answers_may_change(said: str, is_compressed: bool) -> None:
    assert parse_kv_policy(said).is_compressed is is_compressed


def test_a_guard_of_no_layers_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 1 layer, not 0"):
        LayerGuard(INT8, 0)


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (KVPrecision, ("int9", "int8"), "kept in f32, f16, int8, int4, not 'int9'"),
        (KVPrecision, ("int8", ["x"]), r"not \['x'\]"),
        (KVPolicy, ("int8",), "text must be a KVPrecision or None, not 'int8'; parse_kv_policy reads text"),
        (KVPolicy, (None, 8), "image must be a KVPrecision or None, not 8"),
        (KVPolicy, (None, None, INT8), "first_layers must be a LayerGuard, 'auto' or None"),
        (KVPolicy, (None, None, None, "none"), "last_layers must be a LayerGuard, 'auto' or None, not 'none'"),
        (LayerGuard, ("int8", 1), "precision of a layer guard must be a KVPrecision, not 'int8'"),
        (LayerGuard, (INT8, "2"), "must be a whole number, not '2'"),
        (LayerGuard, (INT8, True), "must be a whole number, not True"),
    ],
)
def test_a_policy_that_is_built_from_something_else_is_refused_at_once(
    kind: Callable[..., object], values: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind(*values)


def test_an_offer_says_what_of_a_policy_it_lacks() -> None:
    offer = KVOffer(("f16", "int8"), ("image", "last_layers"))
    assert offer.lacks(KVPolicy()) == KVOffer().lacks(KVPolicy()) == ""
    assert offer.lacks(parse_kv_policy("text=f16,image=int8,last_layers=int8")) == ""
    assert offer.lacks(parse_kv_policy("int4")) == "no KV cache in int4, only in auto, f16, int8"
    assert "in f32 or int4" in offer.lacks(parse_kv_policy("f32/int4"))
    assert "first_layers cannot be said" in offer.lacks(parse_kv_policy("first_layers=int8"))
    assert "image cannot be said" in KVOffer(("int8",)).lacks(parse_kv_policy("image=int8"))


def test_the_words_are_those_of_the_kernels_format() -> None:
    assert get_args(Precision) == PRECISIONS

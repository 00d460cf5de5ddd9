"""Tests of where an answer may be sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.errors import RequestError
from edge_vl.mqtt.reply_rule import ReplyRule, check_topic
from edge_vl.mqtt.topics import GroupTopics, NodeTopics

RULE = ReplyRule("edge_vl", ("robot/answers", "lab/"))


@pytest.mark.parametrize(
    "topic",
    [
        "edge_vl/node/response/client/id",
        "edge_vl/node/response/request/camera",
        "edge_vl/other/response/c/set",
        "edge_vl/robot-7/answers",
        "edge_vl/answers",
        "edge_vl/a/b/c/d/e/f",
        "robot/answers",
        "robot/answers/7/x",
        "lab/a",
    ],
)
def test_answers_may_go_below_the_prefixes(topic: str) -> None:
    assert RULE.check(topic) == topic


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("", "empty"),
        ("edge_vl", "what all topics begin with"),
        ("edge_vlx/a/b", "not below"),
        ("other/a", "not below a topic that answers may go to: edge_vl/..., robot/answers/..., lab/..."),
        ("robot", "not below"),
        ("robot/answersx", "not below"),
        ("/edge_vl/a/b", "empty level"),
        ("edge_vl//a", "empty level"),
        ("edge_vl/a/", "empty level"),
        ("edge_vl/a/b/c/d/e/f/g", "8 levels and may have 7"),
        ("edge_vl/x" + "/a" * 250, "252 levels"),
        ("robot/answers" + "/a" * 6, "8 levels"),
        ("edge_vl/a/+/c", "wildcard"),
        ("edge_vl/#", "wildcard"),
        ("$SYS/broker", "begins with $"),
        ("$share/g/edge_vl/a/b", "begins with $"),
        ("edge_vl/a\x00b", "may not have"),
        ("edge_vl/a\nb", "may not have"),
        ("edge_vl/a\ufffeb", "may not have"),
        ("edge_vl/a\ud800", "may not have"),
        ("edge_vl/" + "é" * 600, "1208 bytes"),
        ("homeassistant/sensor/x/config", "Home Assistant"),
        ("homeassistant/status", "Home Assistant"),
        ("robot/answers/set", "ends with set"),
        ("lab/zigbee/lamp/set", "ends with set"),
        ("lab/other/request", "ends with request"),
        ("edge_vl/site2/node/request", "ends with request"),
        ("edge_vl/site2/node/action/open", "meaning of its own"),
        ("edge_vl/site2/group/g/claims", "meaning of its own"),
    ],
)
def test_other_topics_are_refused_in_words_without_the_topic(topic: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        RULE.check(topic)
    assert words in str(caught.value)
    assert caught.value.field == "reply_to"
    assert len(topic) < 12 or topic not in str(caught.value)


@pytest.mark.parametrize("topic", ["a/b/c/d/e/f/g/h", "a//b", "a/", "/a"])
def test_no_topic_to_send_to_has_many_levels_or_an_empty_one(topic: str) -> None:
    with pytest.raises(RequestError, match="level"):
        check_topic(topic, "topic")


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)


@settings(deadline=None)
@given(NAMES, NAMES, NAMES, st.sampled_from(["edge_vl", "home/edge_vl"]))
def test_no_topic_that_somebody_acts_upon_gets_an_answer(node: str, a: str, b: str, prefix: str) -> None:
    rule, topics, group = ReplyRule(prefix), NodeTopics(prefix, node), GroupTopics(prefix, a)
    acted_upon = [
        *(topics.status, topics.info, topics.stats, topics.request, topics.cancel),
        *(topics.image(a, b), topics.action(a), topics.camera(a, "state"), topics.camera(a, f"{b}/set")),
        *(topics.camera(a, "answer/last"), topics.camera(a, "snapshot")),
        *(group.request, group.cancel, group.claims),
    ]
    assert not [topic for topic in acted_upon if rule.is_allowed(topic)]
    assert rule.is_allowed(topics.response(a, b))


def test_the_discovery_prefix_is_refused_even_where_a_reply_prefix_allows_it() -> None:
    rule = ReplyRule("edge_vl", ("home",), discovery_prefix="home/discovery")
    assert rule.is_allowed("home/a")
    assert not rule.is_allowed("home/discovery/sensor/x/config")


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_allowed_or_refused(topic: str) -> None:
    if RULE.is_allowed(topic):
        assert check_topic(topic, "topic").encode()
        assert not {"+", "#", "\x00"} & set(topic)

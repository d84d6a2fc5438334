"""Conditions on episodes: what they mean, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format.errors import InvalidArgument
from wshard.dataset.conditions import Condition

FACTS: dict[str, Any] = {
    "length": 120,
    "id": "ep_7",
    "success": True,
    "score": 0.5,
    "task": "push",
    "tags": ["a", "b"],
    "nothing": None,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("length > 100 and success", True),
        ("length > 100 and not success", False),
        ("length < 100 or task == 'push'", True),
        ("100 < length <= 120", True),
        ("100 < length < 120", False),
        ("task in ['push', 'pull']", True),
        ("task not in ('push', 'pull')", False),
        ("'a' in tags", True),
        ("'us' in task", True),
        ("length % 7 == 1 and length // 7 == 17", True),
        ("-score < 0 and +score > 0 and score * 2 == 1.0", True),
        ("(length - 20) / 4 == 25", True),
        ("success == True", True),
        ("(1 if success else 2) == 1", True),
        ("  success\n", True),
        ("task == 'push' != 'pull'", True),
        ("[1, 2] == [1, 2]", True),
    ],
)
def test_a_condition_means_what_it_means_in_python(text: str, holds: bool) -> None:
    assert Condition(text).holds(FACTS) is holds
    assert bool(eval(text.strip(), {}, FACTS)) is holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("missing > 3", False),
        ("missing != 3", False),
        ("missing == missing", False),
        ("missing + 1 > 0", False),
        ("missing in [1]", False),
        ("missing not in [1]", False),
        ("1 in missing", False),
        ("missing", False),
        ("nothing < 1 or nothing > 0", False),
        ("not missing", True),
        ("missing is None and length is not None", True),
    ],
)
def test_what_an_episode_does_not_say_compares_false(text: str, holds: bool) -> None:
    assert Condition(text).holds(FACTS) is holds


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("length.real > 3", 1),
        ("success and print(1)", 13),
        ("__import__('os')", 1),
        ("tags[0] == 'a'", 1),
        ("length ** 9 > 1", 1),
        ("1 << length", 1),
        ("[x for x in tags]", 1),
        ("lambda: 1", 1),
        ("f'{length}'", 1),
        ("(length := 3)", 2),
        ("{1: 2}", 1),
        ("b'a' == id", 1),
        ("...", 1),
        ("length is 120", 11),
        ("~length", 1),
        ("length >", 9),
        ("success AND length", 9),
        ("length > 1; success", 11),
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_everything_else_is_refused_with_its_place(text: str, place: int) -> None:
    with pytest.raises(InvalidArgument, match=f"no condition.*at character {place}\\b"):
        Condition(text)


@pytest.mark.parametrize(
    "text", ["", "(" * 5000, "1" + "+1" * 4000, "-" * 9000 + "1", "x" * 10001, "\0"]
)
def test_nothing_brings_the_parser_down(text: str) -> None:
    try:
        condition = Condition(text)
    except InvalidArgument:
        return
    with pytest.raises(InvalidArgument):
        condition.holds(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        "task > 3",
        "tags < 1",
        "task * 100000 == 1",
        "tags + 1",
        "1 in length",
        "1 in task",
        "1 / 0",
        "length % 0",
    ],
)
def test_values_that_do_not_go_together_are_an_error_with_a_place(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"the condition cannot .* at character 1"):
        Condition(text).holds(FACTS)


@given(st.text("length()[]<>=.+-*/'\" andornti0123456789_:,", max_size=30))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        condition = Condition(text)
        holds = condition.holds(FACTS)
    except InvalidArgument:
        return
    if condition.names <= FACTS.keys() - {"nothing"}:
        assert bool(eval(text.strip(), {}, FACTS)) is holds


def test_a_condition_knows_what_it_asks_for() -> None:
    assert Condition("a > 1 and (b or c in ['d'])").names == {"a", "b", "c"}

"""Filters in the language of AIP-160: what they hold of, and what is said of those that are
wrong.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.records import modest

from runfold.vertex.filters import All, Comparison, Filter, Kind, Not, Some, equalities, matches, parse_filter
from runfold_schemas.errors import InvalidEventError

FIELDS: Mapping[str, Kind] = {"user_id": "text", "create_time": "time", "labels": "map", "scope": "map"}
TIME = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

FOUND: Mapping[tuple[str, ...], Any] = {
    ("user_id",): 'a "b" \\ c',
    ("create_time",): TIME,
    ("labels",): {"tier": "gold", "a.b": "dotted"},
    ("labels", "tier"): "gold",
    ("labels", "a.b"): "dotted",
    ("scope",): {"user_id": "u", "app": "x"},
    ("scope", "user_id"): "u",
}


def holds(text: str) -> bool:
    return matches(parse_filter(text, FIELDS), FOUND.get)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        r'user_id="a \"b\" \\ c"',
        r"userId = 'a \"b\" \\ c'",
        "user_id:b",
        'user_id!="b"',
        "labels.tier=gold",
        'labels."a.b"=dotted',
        "labels.a.b=dotted",
        "labels.none!=x",
        "labels:tier",
        "labels:*",
        "NOT labels:none",
        r'scope="{\"app\":\"x\",\"user_id\":\"u\"}"',
        r'scope!="{\"app\":\"x\"}"',
        "scope.user_id=u",
        f'create_time="{TIME.isoformat()}"',
        'createTime>="2030-01-02T03:04:05.678901Z"',
        "create_time<=2030-01-02T05:04:05.678901+02:00",
        "create_time>2030-01-02T03:04:05Z create_time<2030-01-02T03:04:06Z",
        "labels.tier=lead OR labels.tier=gold",
        "user_id:b AND (labels.tier=lead OR NOT (labels.tier=lead))",
        # OR binds stronger than AND.
        "labels.tier=gold OR user_id:z AND user_id:b",
    ],
)
def test_it_holds(text: str):
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "user_id=a",
        "user_id:z",
        "labels.tier=Gold",
        "labels.none=x",
        "labels.none<x",
        "labels:none",
        r'scope="{\"app\":\"x\"}"',
        "create_time<2030-01-02T03:04:05Z",
        "user_id:b user_id:z",
        "NOT user_id:b",
        "labels.tier=gold OR user_id:b AND user_id:z",
    ],
)
def test_it_does_not_hold(text: str):
    assert not holds(text)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("user_id=", 8),
        ("user_id", 7),
        ('user_id="a', 8),
        ("nothing=1", 0),
        ("user_id.key=1", 0),
        ("(user_id=a", 0),
        ("user_id=a)", 9),
        ("user_id=a AND", 13),
        ("user_id=a OR OR", 13),
        ("user_id ! a", 8),
        ('"user_id"=a', 0),
        ("create_time>soon", 12),
        ('create_time>"2030-01-02T03:04:05"', 12),
        ('create_time="2030-13-02T03:04:05Z"', 12),
        ("create_time:2030-01-02T03:04:05Z", 12),
        ("scope=x", 6),
        (r'scope<"{}"', 6),
        ("(" * 51, 50),
    ],
)
def test_what_is_wrong_is_said_with_its_position(text: str, position: int):
    with pytest.raises(InvalidEventError, match=rf"^filter: at {position}, ") as raised:
        parse_filter(text, FIELDS)

    assert raised.value.field == "filter"


def test_an_index_can_be_asked_for_what_has_to_be_equal():
    parsed = parse_filter(
        "user_id=a AND labels.k=v AND (labels.l=1 OR labels.m=2) AND NOT labels.n=3", FIELDS
    )

    assert equalities(parsed) == {("user_id",): "a", ("labels", "k"): "v"}
    assert equalities(parse_filter("user_id=a OR user_id=b", FIELDS)) == {}
    assert equalities(parse_filter("user_id=a", FIELDS)) == {("user_id",): "a"}
    assert equalities(parse_filter(None, FIELDS)) == {}


_comparisons = st.one_of(
    st.builds(
        Comparison, st.just(("user_id",)), st.sampled_from(["=", "!=", "<", "<=", ">", ">=", ":"]), st.text()
    ),
    st.builds(Comparison, st.tuples(st.just("labels"), st.text()), st.sampled_from(["=", "!="]), st.text()),
    st.builds(
        Comparison,
        st.just(("scope",)),
        st.sampled_from(["=", "!="]),
        st.dictionaries(st.text(), st.text(), max_size=3),
    ),
    st.builds(
        Comparison,
        st.just(("create_time",)),
        st.sampled_from(["=", "<", ">="]),
        st.datetimes(timezones=st.just(timezone(timedelta(hours=-3)))),
    ),
)
_filters: st.SearchStrategy[Filter] = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Some, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


def written(filter_: Filter) -> str:
    match filter_:
        case Comparison(path, operator, value):
            name, *key = path
            return f"{name}{''.join('.' + quoted(each) for each in key)} {operator} {quoted(value)}"
        case Not(part):
            return f"NOT ({written(part)})"
        case All(()):
            return ""
        case All(parts):
            return " AND ".join(f"({written(part)})" for part in parts)
        case Some(parts):
            return " OR ".join(f"({written(part)})" for part in parts)


def quoted(value: Any) -> str:
    if isinstance(value, datetime):
        value = value.isoformat()
    elif not isinstance(value, str):
        value = json.dumps(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@modest
@given(_filters)
def test_what_is_written_is_read(filter_: Filter):
    assert parse_filter(written(filter_), FIELDS) == filter_


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A filter with something else in the place of a part of it."""
    text = written(draw(_filters))
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 3)))
    return text[:begin] + draw(_SIGNS) + text[end:]


_SIGNS = st.text(st.sampled_from("()\"'=<>!:. ANDORTuser_idlabels2030-01Z\\"), max_size=3)


@modest
@given(st.text() | damaged())
def test_any_text_is_a_filter_or_refused(text: str):
    try:
        parsed = parse_filter(text, FIELDS)
    except InvalidEventError as error:
        position = re.match(r"filter: at (\d+), ", str(error))
        assert position is not None
        assert int(position[1]) <= len(text)
        return

    assert parse_filter(written(parsed), FIELDS) == parsed
    assert matches(parsed, FOUND.get) is not matches(Not(parsed), FOUND.get)


def test_half_a_surrogate_pair_is_in_no_map():
    with pytest.raises(InvalidEventError, match="whole map"):
        parse_filter(r'scope="{\"user\": \"\\ud800\"}"', FIELDS)


_few = st.sampled_from(["", "a", "b"])
_paths = st.sampled_from([("user_id",), ("labels", "a"), ("labels", "b")])
_equalities = st.builds(Comparison, _paths, st.sampled_from(["=", "=", "!="]), _few)


@modest
@given(
    st.recursive(
        _equalities,
        lambda inner: (
            st.builds(All, st.lists(inner, min_size=1, max_size=3).map(tuple))
            | st.builds(Some, st.lists(inner, min_size=2, max_size=2).map(tuple))
        ),
        max_leaves=4,
    ),
    st.dictionaries(_paths, _few),
)
def test_what_has_to_be_equal_is_so_in_all_it_holds_of(filter_: Filter, found: dict[tuple[str, ...], Any]):
    assume(matches(filter_, found.get))

    assert {path: found.get(path) for path in equalities(filter_)} == equalities(filter_)


def test_a_filter_has_a_limit():
    fields: dict[str, Kind] = {"fact": "text"}

    parse_filter('fact="' + "a" * 1_993 + '"', fields)
    with pytest.raises(InvalidEventError, match="2,001 characters; 2,000 are allowed"):
        parse_filter('fact="' + "a" * 1_994 + '"', fields)

"""Names and messages of Agent Engine, as Google's clients write and read them."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.records import modest

from runfold.vertex.messages import Duration, Fields, Message, Timestamp, camel, rfc3339
from runfold.vertex.names import Name, checked_id, new_id
from runfold.vertex.paging import PageRequest, fetch_page, token_of, token_values
from runfold_schemas.errors import InvalidEventError

FULL = "projects/p/locations/l/reasoningEngines/1/sessions/2"

_ids = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_.~"), min_size=1)


class Inner(Message):
    some_text: str | None = None


class Outer(Message):
    one_of = (("ttl", "expire_time"),)

    inner_message: Inner | None = None
    session_state: dict[str, Any] | None = None
    ttl: Duration | None = None
    expire_time: Timestamp | None = None
    content: Fields | None = None


def fault(**fields: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(fields)
    return raised.value.errors()[0]["msg"]


@modest
@given(project=_ids, location=_ids, engine=_ids, session=_ids)
def test_a_name_is_read_as_it_was_written(project: str, location: str, engine: str, session: str):
    path = (("reasoningEngines", engine), ("sessions", session))
    name = Name(path, project, location)

    assert Name.parse(str(name)) == name


def test_a_short_name_is_a_full_one_of_our_own_project():
    name = Name.parse("reasoningEngines/1/sessions/2")

    assert str(name) == "projects/runfold/locations/local/reasoningEngines/1/sessions/2"
    assert (name.engine_id, name.id, name.id_in("sessions"), name.id_in("memories")) == ("1", "2", "2", None)
    assert name.parent == name.engine == Name.parse("reasoningEngines/1")
    assert name.engine.child("sessions", "2") == name


@pytest.mark.parametrize(
    "text", ["", "reasoningEngines", "reasoningEngines/1/sessions", "a//b/c", "projects/p", "things/1", "//"]
)
def test_what_is_no_name_is_refused(text: str):
    with pytest.raises(InvalidEventError):
        Name.parse(text)


@pytest.mark.parametrize("text", ["", "-a", "..", "a/b", "a b", "a:b", "a%2Fb", "ü", "a" * 129])
def test_an_id_fits_into_a_url_as_it_is(text: str):
    with pytest.raises(InvalidEventError, match="sessionId"):
        checked_id(text, field="sessionId")


def test_new_ids_are_numbers_that_ascend():
    ids = [new_id() for _ in range(50)]

    assert all(each.isdigit() and int(each) < 2**63 for each in ids)
    assert [each[:16] for each in ids] == sorted(each[:16] for each in ids)


@pytest.mark.parametrize(
    "fields",
    [
        {"innerMessage": {"someText": "x"}},
        {"inner_message": {"some_text": "x"}},
        {"innerMessage": {"some_text": "x"}, "unknown": 1, "none": None},
    ],
)
def test_fields_come_in_either_spelling(fields: dict[str, Any]):
    assert Outer.model_validate(fields).json_form() == {"innerMessage": {"someText": "x"}}


def test_what_is_the_writers_own_stays_as_it_is():
    state = {"snake_key": None, "camelKey": {"a_b": [None, 2**70]}}

    assert Outer(session_state=state).json_form() == {"sessionState": state}


def test_a_message_that_is_not_known_in_full_is_renamed_down_to_opaque_fields():
    given = {
        "parts": [{"function_call": {"args": {"a_b": {"c_d": None}}, "will_continue": None}}],
        "_private": {"x_y": 1},
        "state_delta": {"x_y": 1},
    }

    assert Outer(content=given).json_form()["content"] == {
        "parts": [{"functionCall": {"args": {"a_b": {"c_d": None}}}}],
        "_private": {"xY": 1},
        "stateDelta": {"x_y": 1},
    }


def test_what_is_nested_too_deep_is_refused():
    nested: Any = {}
    for _ in range(5_000):
        nested = {"a": nested}

    assert "nested" in fault(content=nested)


@given(st.datetimes(timezones=st.timezones()))
def test_times_keep_their_microseconds(time: datetime):
    text = rfc3339(time)

    assert text.endswith("Z")
    assert len(text) == len("2030-01-02T03:04:05.678901Z")
    if 1 < time.year < 9997:
        assert Outer.model_validate({"expireTime": text}).expire_time == time.astimezone(UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59.999999Z"),
        ("0001-01-01T00:00:00+12:00", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_time_that_utc_has_no_year_for_is_refused_and_told_as_near_as_it_can_be(text: str, told: str):
    assert "years" in fault(expireTime=text)
    assert rfc3339(datetime.fromisoformat(text)) == told


def test_a_time_may_have_nanoseconds_and_any_zone():
    read = Outer.model_validate({"expire_time": "2030-01-02T03:04:05.678901999+02:00"})

    assert read.json_form() == {"expireTime": "2030-01-02T01:04:05.678901Z"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3.5s", 3.5), ("2592000s", 2592000), ("-1s", -1), ("0s", 0), ("1.000001s", 1.000001)],
)
def test_durations_are_seconds(text: str, seconds: float):
    read = Outer.model_validate({"ttl": text})

    assert read.ttl == timedelta(seconds=seconds)
    assert read.json_form() == {"ttl": text}


@pytest.mark.parametrize("fields", [{"ttl": 3}, {"ttl": "3"}, {"ttl": "s"}, {"ttl": "9999999999s"}])
def test_what_is_no_duration_is_refused(fields: dict[str, Any]):
    assert "a duration" in fault(**fields)


@pytest.mark.parametrize("text", [1893553445, "2030-01-02T03:04:05", "soon"])
def test_what_is_no_time_is_refused(text: Any):
    assert fault(expire_time=text)


def test_one_of_several_fields_may_be_given():
    assert "only one of ttl and expireTime" in fault(ttl="3s", expireTime="2030-01-02T03:04:05Z")


def test_camel_case_stays_camel_case():
    assert camel({"alreadySo": 1, "as_it_was_2": 2}) == {"alreadySo": 1, "asItWas2": 2}


@given(st.lists(st.text() | st.integers(-(2**63), 2**63)))
def test_a_token_holds_its_place(place: list[Any]):
    token = token_of(*place)

    assert token_values(token) == place
    assert token.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("place", ["[NaN]", '["\\ud800"]', "[" * 5_000, "1", "{}"])
def test_a_token_of_what_no_token_holds_is_refused(place: str):
    with pytest.raises(InvalidEventError):
        token_values(encoded(place))


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@given(
    st.text() | st.lists(st.integers() | st.text(max_size=3)).map(lambda place: encoded(json.dumps(place)))
)
def test_a_foreign_token_is_a_place_or_refused(token: str):
    try:
        place = token_values(token)
    except InvalidEventError:
        return

    assert token_values(token_of(*place)) == place


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 7))
async def test_pages_have_all_items_once_and_are_never_empty(wanted: list[bool], size: int):
    async def fetch(limit: int, cursor: str | None) -> tuple[list[int], str | None]:
        begin = int(cursor or 0)
        end = begin + limit
        return list(range(len(wanted)))[begin:end], str(end) if end < len(wanted) else None

    shown, token = await fetch_page(fetch, wanted.__getitem__, PageRequest(size, None))
    pages = [shown]
    while token is not None:
        shown, token = await fetch_page(fetch, wanted.__getitem__, PageRequest(size, token))
        pages.append(shown)

    assert [len(each) for each in pages[:-1]] == [size] * (len(pages) - 1)
    assert [] not in pages[1:]
    assert [number for each in pages for number in each] == [
        number for number, is_selected in enumerate(wanted) if is_selected
    ]


async def test_what_is_deleted_between_pages_hides_nothing_else():
    items = list(range(9, -1, -1))

    async def fetch(limit: int, cursor: str | None) -> tuple[list[int], str | None]:
        behind = [item for item in items if cursor is None or item < int(cursor)]
        return behind[:limit], str(behind[limit - 1]) if len(behind) > limit else None

    found: list[int] = []
    token = None
    while token is not None or not found:
        shown, token = await fetch_page(fetch, lambda item: item % 3 != 0, PageRequest(2, token))
        found += shown
        items = [item for item in items if item not in shown]

    assert found == [8, 7, 5, 4, 2, 1]


async def test_a_verb_is_asked_for_few_items_more_than_a_page_has():
    asked: list[int] = []

    async def fetch(limit: int, cursor: str | None) -> tuple[list[int], str | None]:
        asked.append(limit)
        begin = int(cursor or 0)
        return list(range(begin, begin + limit)), str(begin + limit)

    await fetch_page(fetch, lambda _: True, PageRequest(10, None))

    assert sum(asked) == 20

"""Times and spans of queries: what is read, and what no calendar has."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from runfold.query.agents import AgentReader
from runfold.query.run_selection import RunSelection
from runfold.query.stored_runs import StoredRuns
from runfold.query.times import Time
from runfold.store.run_filter import NEWEST_FIRST, RunFilter, run_query


class Nothing(StoredRuns):
    def __init__(self) -> None:
        pass

    async def current(self) -> None:
        return None


TIME: TypeAdapter[datetime] = TypeAdapter(Time)

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)

OFFSETS = st.timedeltas(min_value=timedelta(hours=-23), max_value=timedelta(hours=23)).map(
    lambda offset: timezone(timedelta(seconds=int(offset.total_seconds())))
)


@given(st.datetimes(timezones=OFFSETS), st.sampled_from("T "), st.booleans())
def test_what_isoformat_writes_is_read_also_if_a_query_has_lost_its_plus(time, separator, is_quoted):
    text = time.isoformat(separator)

    read = TIME.validate_python(text if is_quoted else parse_qs(f"since={text}")["since"][0])

    assert (read, read.utcoffset()) == (time, time.utcoffset())


@pytest.mark.parametrize(
    "text",
    [
        *("2026-11-26T12:00:00Z", "2026-11-26t12:00:00z", "20261126T120000Z", "20261126T130000+0100"),
        *(
            "2026-11-26T12:00+00:00",
            "20261126T130000 0100",
            "2026-11-26 12:00Z",
            "@1795694400",
            "@1795694400.0",
        ),
    ],
)
def test_other_forms_of_a_time_are_read(text: str):
    assert TIME.validate_python(text) == NOON


@pytest.mark.parametrize("text", ["2026-11-26", "20261126"])
def test_a_date_begins_at_midnight_in_utc(text: str):
    assert TIME.validate_python(text) == NOON.replace(hour=0)


@pytest.mark.parametrize("wrong", ["1795694400", "-1", "1.5", "2026", 1795694400, 0.5])
def test_a_number_alone_is_no_time(wrong):
    with pytest.raises(ValidationError, match="a number of seconds since 1970 is written @"):
        TIME.validate_python(wrong)


@pytest.mark.parametrize(
    "wrong", ["@1e3", "@", "@99999999999999", "2026-11-26T12:00:00", "20261399", "soon", ""]
)
def test_what_is_no_time_is_refused(wrong: str):
    with pytest.raises(ValidationError):
        TIME.validate_python(wrong)


def test_a_span_of_a_million_years_is_refused():
    with pytest.raises(ValidationError):
        RunSelection.model_validate({"idle": "P999999999D"})


async def test_statistics_of_the_future_are_empty():
    since = datetime.fromisoformat("9999-12-31T23:59:59-14:00")

    document = await AgentReader(Nothing(), None).get("desk", since=since)

    assert (document.runs, len(document.runs_by_day)) == (0, 1)
    assert datetime.now(UTC) - document.since < timedelta(minutes=1)


@pytest.mark.parametrize("is_session", [None, True, False])
def test_words_restrict_a_list_of_open_and_other_runs(is_session: bool | None):
    for status in (("open", "failed"), ("open",), ("open", "running"), None):
        query = run_query(RunFilter(text="ann", status=status, is_session=is_session), NEWEST_FIRST)

        assert "'text'" in repr(query)

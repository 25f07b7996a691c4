"""Spans and times of lists that no calendar has."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from runfold.query.agents import AgentReader
from runfold.query.run_selection import RunSelection
from runfold.query.stored_runs import StoredRuns
from runfold.store.run_filter import NEWEST_FIRST, RunFilter, run_query


class Nothing(StoredRuns):
    def __init__(self) -> None:
        pass

    async def current(self) -> None:
        return None


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

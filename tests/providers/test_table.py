"""The page of the cases is current."""

from tests.providers import table


def test_the_page_of_cases_is_current():
    assert table.main(["--check"]) == 0

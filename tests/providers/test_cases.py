"""Each response of the corpus is recorded, folded and encoded again: exactly the expected request
comes out, whether the response came as JSON, as an object of the official package, or as a stream.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.providers.corpus import Case, Found, assert_as_expected, corpus

from runfold_projections.providers import provider_of

WAYS = [pytest.param(found, way, id=f"{found}-{way}") for found in corpus() for way in found.ways()]


@pytest.mark.parametrize(("found", "way"), WAYS)
def test_the_second_request_is_exactly_the_expected_one(found: Found, way: str):
    assert_as_expected(found, way)


def test_the_provider_of_each_response_is_recognized():
    mistaken = {
        f"{found}: {provider}"
        for found in corpus()
        for said in (found.case.response, *(found.case.chunks or ())[:1])
        if said is not None and found.case.kind != "errors"
        if (provider := provider_of(said)) != found.provider
    }

    assert mistaken == set()


def test_the_corpus_has_at_least_150_cases():
    assert len(corpus()) >= 150


def test_no_two_cases_of_a_provider_are_the_same_response():
    same = Counter((found.provider, str(found.case.response or found.case.chunks)) for found in corpus())

    assert [each for each, times in same.items() if times > 1] == []


def test_the_readme_explains_each_member_of_a_case():
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")

    assert [name for name in Case.model_fields if f"`{name}`" not in readme] == []

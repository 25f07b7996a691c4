"""Names of topics: any id has one, no two ids have the same, and what Kafka would refuse is refused
first.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records import modest

from runfold_schemas.errors import InvalidIdError
from runfold_schemas.topics import ID_BYTES_MAX, TOPIC_BYTES_MAX, Topics, check_id, escape, unescape

LOG_ID = "0198c0de000070008000000000000000"
KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

any_text = st.text(max_size=40)
ids = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15)


@modest
@given(any_text)
def test_unescaping_undoes_escaping(text):
    assert unescape(escape(text)) == text


@modest
@given(any_text)
def test_an_escaped_id_holds_only_what_a_part_of_a_topic_name_may_hold(text):
    assert re.fullmatch(r"[A-Za-z0-9_-]*", escape(text))


@modest
@given(any_text, any_text)
def test_different_ids_differ_also_where_kafka_takes_dots_for_underscores(one, other):
    topics = [f"{escape(text)}.{LOG_ID}".replace(".", "_") for text in (one, other)]

    assert (topics[0] == topics[1]) == (one == other)


def test_ids_that_look_alike_to_kafka_have_topics_that_do_not():
    names = {
        Topics().run(run_id, LOG_ID).replace(".", "_") for run_id in ("a.b", "a_b", "a_2eb", "a-b", "a b")
    }

    assert len(names) == 5


def test_letters_digits_and_the_hyphen_stay_readable():
    assert escape("Run-7") == "Run-7"
    assert escape("a.b_c/é") == "a_2eb_5fc_2f_c3_a9"


@modest
@given(ids)
def test_parsing_a_runs_topic_gives_its_run_and_life(run_id):
    topic = Topics("team-1").run(run_id, LOG_ID)

    assert KAFKA_NAME.fullmatch(topic)
    assert Topics("team-1").parse_run(topic) == (run_id, LOG_ID)


@modest
@given(ids, st.text("ab_.-0159cdef \0é", max_size=30), st.data())
def test_a_name_that_differs_from_a_runs_topic_is_no_runs_or_that_of_another_run(run_id, text, data):
    topics = Topics()
    topic = topics.run(run_id, LOG_ID)
    at = data.draw(st.integers(len("runfold.run."), len(topic)))
    changed = topic[:at] + text + topic[data.draw(st.integers(at, len(topic))) :]

    found = topics.parse_run(changed)

    if changed == topic:
        assert found == (run_id, LOG_ID)
    elif found is not None:
        assert found != (run_id, LOG_ID)
        assert topics.run(*found) == changed


@pytest.mark.parametrize(
    "topic",
    [
        "runfold.runs",
        "runfold.dead-letters",
        "runfold.run",
        "runfold.run.",
        "runfold.run.alone",
        "runfold.run..log",
        "runfold.run.a.",
        "runfold.run.a.b.log",
        "runfold.run._.log",
        "runfold.run._2D.log",
        "runfold.run._61.log",
        "runfold.run._ff.log",
        "runfold.run._00.log",
        f"runfold.run.{'a' * 101}.log",
        "other.run.a.log",
        "runfold-2.run.a.log",
    ],
)
def test_other_topics_are_nobodys_run(topic):
    assert Topics().parse_run(topic) is None


def test_an_id_of_the_most_bytes_is_taken_and_one_more_is_refused_with_both_numbers():
    assert check_id("x" * ID_BYTES_MAX, name="run_id") == "x" * ID_BYTES_MAX

    with pytest.raises(InvalidIdError, match="run_id has 102 bytes; 1 to 100 are allowed") as refusal:
        check_id("é" * 51, name="run_id")

    assert (refusal.value.name, refusal.value.value) == ("run_id", "é" * 51)


@pytest.mark.parametrize(
    ("value", "reason"),
    [("", "has 0 bytes"), ("a\0b", "contains a NUL"), ("\ud800", "is not valid Unicode")],
)
def test_an_id_that_cannot_be_one_says_why(value, reason):
    with pytest.raises(InvalidIdError, match=f"^session_id {reason}"):
        check_id(value, name="session_id")


def test_an_id_whose_name_is_too_long_for_kafka_is_refused_with_the_reason():
    longest = "é" * 33

    assert len(Topics().run(longest, LOG_ID)) <= TOPIC_BYTES_MAX
    with pytest.raises(InvalidIdError, match="would have 345 bytes, Kafka allows 249") as refusal:
        Topics().run("é" * 50, LOG_ID)

    assert refusal.value.name == "run_id"


@pytest.mark.parametrize("run_id", ["", "x" * 101, "a\0b", "\ud800"])
def test_no_topic_is_named_after_an_invalid_id(run_id):
    with pytest.raises(InvalidIdError, match="run_id"):
        Topics().run(run_id, LOG_ID)


@pytest.mark.parametrize("prefix", ["", "a.b", "a_b", "ü", "x" * 33, "a\n"])
def test_a_prefix_that_would_blur_the_names_is_refused(prefix):
    with pytest.raises(InvalidIdError, match="topic prefix") as refusal:
        Topics(prefix)

    assert refusal.value.name == "prefix"


def test_the_shared_topics_carry_the_prefix():
    topics = Topics("team-1")

    assert topics.catalog == "team-1.runs"
    assert topics.dead_letters == "team-1.dead-letters"
    assert topics.run("a", "b") == "team-1.run.a.b"

"""Word diffs: nothing is lost or made up, and a reader sees words."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.cli.word_diff import Span, marked, word_diff, words

PROSE = st.lists(
    st.sampled_from(["window", "aisle", "seats", "don't", "07:04", ",", ".", " ", "\n", "漢", "字", "é"])
).map("".join)
TEXTS = st.one_of(st.text(), PROSE)


@given(TEXTS, TEXTS)
def test_applying_a_difference_gives_the_new_text_and_undoing_it_the_old_one(old: str, new: str):
    spans = word_diff(old, new)

    assert "".join(span.text for span in spans if span.kind != "removed") == new
    assert "".join(span.text for span in spans if span.kind != "added") == old


@given(TEXTS, TEXTS)
def test_no_piece_is_empty_and_no_two_of_a_kind_are_neighbours(old: str, new: str):
    spans = word_diff(old, new)

    assert all(span.text for span in spans)
    assert all(one.kind != other.kind for one, other in pairwise(spans))


@given(TEXTS)
def test_what_is_the_same_is_kept_and_an_empty_text_has_nothing_in_common(text: str):
    assert {span.kind for span in word_diff(text, text)} <= {"kept"}
    assert {span.kind for span in word_diff("", text)} <= {"added"}
    assert {span.kind for span in word_diff(text, "")} <= {"removed"}


@given(TEXTS)
def test_words_are_the_whole_text(text: str):
    assert "".join(words(text)) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Don't, he said.", ["Don't", ",", " ", "he", " ", "said", "."]),
        ("At 07:04, 3.14 or 1,000.", ["At", " ", "07:04", ",", " ", "3.14", " ", "or", " ", "1,000", "."]),
        ("a window-seat -- no", ["a", " ", "window-seat", " ", "-", "-", " ", "no"]),
        ("tool_name:x", ["tool_name", ":", "x"]),
        ("Lyon (France)", ["Lyon", " ", "(", "France", ")"]),
        ("e\u0301te\u0301 हिन्दी", ["e\u0301te\u0301", " ", "हिन्दी"]),
        ("窓側が好き", ["窓", "側", "が", "好", "き"]),
    ],
)
def test_punctuation_stands_by_itself_unless_it_is_within_a_word(text: str, parts: list[str]):
    assert words(text) == parts


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("Prefers window seats", "Prefers aisle seats", "Prefers [-window-]{+aisle+} seats"),
        ("Likes tea", "Likes tea.", "Likes tea{+.+}"),
        ("Likes tea.", "Likes green tea.", "Likes {+green +}tea."),
        ("Likes tea", "Likes tea a lot", "Likes tea{+ a lot+}"),
        ("one  two", "one two", "one[- -] two"),
        (" one", "one", "[- -]one"),
        ("one two three", "uno dos tres", "[-one two three-]{+uno dos tres+}"),
        ("窓側が好き", "通路側が好き", "[-窓-]{+通路+}側が好き"),
        ("the same", "the same", "the same"),
    ],
)
def test_without_color_a_difference_is_marked(old: str, new: str, shown: str):
    assert marked(word_diff(old, new)) == shown


@pytest.mark.parametrize("word", ["a ", "!", "a!", "a b ", "漢"])
def test_what_is_repeated_without_end_is_compared_at_once(word: str):
    old = word * (20_000 // len(word))

    assert word_diff(old, f"{old}end") == [Span("kept", old), Span("added", "end")]

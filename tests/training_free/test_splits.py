"""Texts that share no position, and what of them a method reads."""

import numpy as np
import pytest

from lengthen.data import load_corpus
from lengthen.errors import InputError
from lengthen.training_free import method_of
from lengthen.training_free.contest import Course
from lengthen.training_free.splits import Splits, calibration_from, parts
from tests.training_free.texts import L, T, text


def test_splits_share_no_position_and_lose_none():
    corpus = load_corpus([text(1000), text(30, 1), text(970, 2)])
    splits = Splits.of(corpus)
    places = [set(range(c.boundaries[0], c.boundaries[-1])) for c in (splits.calibrate, splits.select, splits.report)]
    assert [len(p) for p in places] == [500, 500, 1000] and len(set.union(*places)) == 2000
    assert splits.report.boundaries.tolist() == [1000, 1030, 2000], "documents stay apart"


def test_what_methods_read_lies_in_their_own_part():
    """Of a text that counts up, every window that is fitted on, chosen by or reported on says where it comes from."""
    corpus = load_corpus([np.arange(4000)])
    course = Course(Splits.of(corpus), T, L, n=16)
    fitted_on = calibration_from(
        course.splits.calibrate, method_of("mamba-extend:search=gradient"), train_context=T, length=L, seed=0
    )
    assert fitted_on.text.max() < 1000 and fitted_on.long_text.max() < 1000
    chosen_by = course.splits.to_select_by(L, 0)[:, 0 : L + 1]
    assert chosen_by.min() >= 1000 and chosen_by.max() < 2000
    assert course.report()[:, 0 : L + 1].min() >= 2000


def test_a_text_to_train_on_is_not_the_one_to_judge_by():
    judged_by, training = load_corpus([text()]), load_corpus([text(3000, 1)])
    splits = Splits.of(judged_by, training)
    assert splits.calibrate is training and splits.select.boundaries[0] == 0 and splits.report.boundaries[-1] == 6000
    with pytest.raises(InputError, match="is the one to judge by"):
        Splits.of(judged_by, load_corpus([text()]))


def test_parts_keep_short_ends():
    assert [p.boundaries.tolist() for p in parts(load_corpus([text(7)]), (0.5, 0.5))] == [[0, 4], [4, 7]]


@pytest.mark.parametrize(
    "method, windows, long",
    [
        ("hard-reset", None, None),
        ("decay-matching", (32, 9), None),
        ("mamba-extend", None, (2, 33)),
        ("mamba-extend:search=gradient", (32, 9), (2, 33)),
    ],
)
def test_a_method_gets_the_text_it_asks_for_and_no_other(method, windows, long):
    corpus = load_corpus([text(1000)])
    given = calibration_from(corpus, method_of(method), train_context=T, length=L, seed=3)
    assert [None if t is None else tuple(t.shape) for t in (given.text, given.long_text)] == [windows, long]
    assert (given.train_context, given.length, given.seed, given.tokens_read) == (T, L, 3, 0)


def test_a_short_text_gives_as_many_sequences_as_lie_side_by_side():
    """Of 10 positions and the one predicted last, over the ends of documents."""
    shapes = {}
    for tokens in (11, 32, 33, 43, 44, 1000):
        corpus = load_corpus([np.arange(tokens - 4), np.arange(4)])
        shapes[tokens] = Splits(corpus, corpus, corpus).to_select_by(10, 0).shape
    assert shapes == {11: (1, 11), 32: (2, 11), 33: (3, 11), 43: (3, 11), 44: (4, 11), 1000: (4, 11)}

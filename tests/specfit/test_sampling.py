"""What may be asked of generation, and the numbers that draw tokens: uniform, independent, and the same for ever."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from specfit.sampling import Sampling, check_limits, make_sampling


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": 0}, "temperature is 0; expected a number above 0"),
        ({"temperature": -1.0}, "leave it out"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": 0}, "top_k is 0; expected a whole number of 1 or more"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a probability above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"temperature": 1.0, "seed": 1.5}, "seed is 1.5; expected a whole number"),
    ],
)
def test_bad_settings_are_one_sentence(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        make_sampling(**settings)
    assert "\n" not in str(caught.value)


def test_any_setting_but_the_seed_means_sampling() -> None:
    assert make_sampling(seed=3) is None
    assert make_sampling(top_k=5, seed=3) == Sampling(1.0, 5, None, 3)
    assert make_sampling(temperature=0.5) == Sampling(0.5)
    assert make_sampling(top_p=np.float64(0.5)) == Sampling(top_p=0.5)


@pytest.mark.parametrize(
    ("most", "least", "sentence"),
    [
        (0, 0, "max_new_tokens is 0; expected a whole number of 1 or more"),
        (2.0, 0, "max_new_tokens is 2.0"),
        (True, 0, "max_new_tokens is True"),
        (5, -1, "min_new_tokens is -1; expected a whole number of 0 or more"),
        (5, 6, "min_new_tokens is 6 and max_new_tokens 5"),
    ],
)
def test_limits_that_cannot_be(most: object, least: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_limits(most, least)
    check_limits(5, 5)


def test_numbers_are_uniform_along_a_text_and_along_seeds() -> None:
    along = [Sampling(seed=7).number(position) for position in range(20_000)]
    across = [Sampling(seed=seed).number(12) for seed in range(20_000)]
    for numbers in (along, across):
        assert min(numbers) >= 0 and max(numbers) < 1
        assert chisquare(np.histogram(numbers, 64, (0, 1))[0]).pvalue > 1e-3
        table, _, _ = np.histogram2d(*np.array(list(pairwise(numbers))).T, 8, ((0, 1), (0, 1)))
        assert chisquare(table.ravel()).pvalue > 1e-3  # neighbours tell nothing of each other


def test_numbers_never_change() -> None:
    """A seed is a promise: texts that were drawn with it can be drawn again."""
    assert Sampling(seed=0).number(0) == 0.7687632989449689
    assert Sampling(seed=np.int64(0)).number(0) == Sampling(seed=0).number(0) != Sampling(seed=-1).number(0)

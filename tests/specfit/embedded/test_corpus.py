"""The generator behind the embedded pair: the same rows everywhere, splits apart, answers right."""

import re
import subprocess
import sys

import pytest

from specfit.embedded import corpus, news
from specfit.embedded.wording import pattern

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


def test_rows_depend_on_nothing_but_split_kind_and_index():
    assert corpus.problems("test", 5) == corpus.problems("test", 9)[:5]
    assert corpus.news("test", 2, first=3) == corpus.news("test", 5)[3:]
    script = "from specfit.embedded import corpus; print(corpus.news('tune', 1)[0].answer)"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == corpus.news("tune", 1)[0].answer


@pytest.mark.parametrize("make", [corpus.problems, corpus.news])
def test_no_prompt_of_one_split_is_in_another(make):
    train, tune, test = ({row.prompt for row in make(split, 300)} for split in ("train", "tune", "test"))
    assert not train & tune and not train & test and not tune & test
    assert min(map(len, (train, tune, test))) > 295  # and draws hardly repeat within a split


def test_every_sum_in_a_reference_answer_is_right():
    for row in corpus.problems("train", 300):
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", row.answer)
        assert len(sums) >= 2
        assert all(OPERATIONS[sign](int(a), int(b)) == int(result) for a, sign, b, result in sums)
        assert all(int(a) % int(b) == 0 for a, sign, b, _ in sums if sign == "/")
        assert row.answer.endswith(f"#### {row.number}")
        assert max(map(int, re.findall(r"\d+", row.answer))) <= 99


def test_a_summary_states_facts_of_its_report_once_and_in_its_order():
    for row in corpus.news("train", 100):
        facts = [news.stated_fact(sentence) for sentence in re.split(r"(?<=\.) ", row.answer)]
        assert None not in facts and len(set(facts)) == len(facts) >= 8
        values = [row.answer[start:end] for start, end in row.copied]
        places = [row.prompt.index(value) for value in values]
        starts = {}  # the first value of each sentence of the report, in the summary's order
        for value, place in zip(values, places):
            starts.setdefault(row.prompt.rfind(". ", 0, place), value)
        assert list(starts) == sorted(starts)


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        corpus.news("dev", 1)


def test_a_pattern_knows_every_wording_of_its_template():
    known = pattern("[gusts of|winds up to {m} or] {n} miles")
    assert known.fullmatch("Gusts of 30 miles") and known.fullmatch("winds up to 4 or 30 miles")
    assert not known.search("gusts of wind")

"""The running mean of the losses: as exact as keeping all of them."""

import json
import math
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from spillway.base.sums import Mean

FLOATS = st.floats(min_value=-1e300, max_value=1e300)


def mean_of(values: list[float]) -> Mean:
    mean = Mean()
    for value in values:
        mean.add(value)
    return mean


@given(st.lists(FLOATS, min_size=1, max_size=200))
def test_equal_to_the_sum_of_the_list_bit_for_bit(values: list[float]) -> None:
    assert mean_of(values).value() == math.fsum(values) / len(values)


@given(st.lists(FLOATS, min_size=2, max_size=50), st.data())
def test_a_file_between_two_values_changes_nothing(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    kept = Mean(**json.loads(json.dumps(asdict(mean_of(values[:cut])))))
    for value in values[cut:]:
        kept.add(value)
    assert kept.value() == math.fsum(values) / len(values)


def test_it_does_not_grow() -> None:
    mean = mean_of([10 ** (8 * math.sin(number)) / 3 for number in range(20000)])
    assert len(json.dumps(asdict(mean))) < 1000 and mean.count == 20000


def test_what_is_no_number_stays_so_until_it_is_cleared() -> None:
    for value in (math.inf, math.nan):
        mean = mean_of([1.0, value, 2.0])
        again = Mean(**json.loads(json.dumps(asdict(mean))))
        assert repr(again.value()) == repr(value)
        again.clear()
        again.add(3.0)
        assert again.value() == 3.0

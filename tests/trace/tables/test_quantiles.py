"""Quantiles, by those of numpy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.tables.quantiles import quantiles


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=50))
def test_quartiles_are_those_of_numpy(values):
    column = np.array(values, np.int64)
    assert quantiles(column) == np.quantile(column, (0.25, 0.5, 0.75)).tolist()


def test_any_share_can_be_asked_for():
    assert quantiles(np.array([30, 10, 20, 40]), (0.0, 0.1, 1.0)) == pytest.approx([10, 13, 40])


@pytest.mark.process
def test_numpy_ma_stays_out():
    program = (
        "import sys, numpy as np; from perfdoctor.trace.tables.quantiles import quantiles; "
        "quantiles(np.arange(9)); assert 'numpy.ma' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

"""Advice: the one table of what to do in which situation, and the choice of a row by what program it is."""

from __future__ import annotations

from perfdoctor.rules.advice.advice_row import Advice, AdviceRow, When
from perfdoctor.rules.advice.choose_advice import advise

__all__ = ["Advice", "AdviceRow", "When", "advise"]

"""Trials: the program runs again and again, each time with one change applied from outside, and is timed."""

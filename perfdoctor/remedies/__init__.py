"""Remedies: what to do about each cause, as data, and the choice among it by what program it is."""

"""Run a program and record it."""

"""Staged hangs and healthy runs, each with its truth."""

"""Edits of the user's source: found for findings, measured in a scratch copy, and written as a patch."""

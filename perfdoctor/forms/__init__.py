"""Other forms of what a program computes, as data, and the one mechanism that measures them (knowledge/places.md, 5).

`perfdoctor run` records the torch calls of one step. After the program has ended the dearest of them, and nests of
calls that forms.toml names, are run again by themselves at their sizes, strides and types beside their other forms.
What was measured goes into facts.json, where rules and places find it.
"""

from __future__ import annotations

DEFAULT_BUDGET_S = 10.0
"""How long `perfdoctor run` measures after the program has ended."""

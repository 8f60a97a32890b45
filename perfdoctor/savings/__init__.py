"""What a fix would save: edits of a trace, its replay, and the order of fixes.

Rules that compare ranks see summaries. The trace of an only rank is still there, so what they find in its collectives
is an edit like any other. Of several ranks the traces are gone by then: a ledger bounds what they claim.
"""

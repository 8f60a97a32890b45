"""What a fix would save: edits of a trace, its replay, and the order of fixes."""

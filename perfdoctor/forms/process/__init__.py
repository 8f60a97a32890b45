"""The process that measures forms: the standard library and torch, and nothing of perfdoctor."""

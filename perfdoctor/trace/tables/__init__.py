"""The Trace itself: its tables, interval arithmetic, nesting, links, steps."""

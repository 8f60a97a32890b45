"""A file becomes columns: readers, the Trace they make, its steps, and interval arithmetic."""

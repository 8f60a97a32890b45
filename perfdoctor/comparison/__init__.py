"""Two recordings of a program: whether they can be compared, what became of the step, and what explains it."""

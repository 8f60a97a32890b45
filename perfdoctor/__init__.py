"""perfdoctor: why is the step slow, which line to change, and how much will it give."""

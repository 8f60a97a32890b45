"""What program a trace was recorded of: its phase, frameworks and parallelism, and whether it runs steadily."""

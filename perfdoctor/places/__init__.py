"""The account by place and cause: which line of the user's code each nanosecond of a step belongs to, and why."""

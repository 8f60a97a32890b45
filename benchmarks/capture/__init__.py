"""The overhead of recording."""

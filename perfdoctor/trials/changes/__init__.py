"""The changes that come with perfdoctor, one to a file; each is found by its entry point, and loaded by its path."""

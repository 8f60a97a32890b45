"""Planted faults: the saving that a report promises for a fix against the saving of the fix."""

"""Planted faults: what perfdoctor promises for a fix against what the fix gives."""

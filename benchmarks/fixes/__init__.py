"""How many findings on the clinic's programs have an edit, and what the patches give that `perfdoctor fix` writes."""

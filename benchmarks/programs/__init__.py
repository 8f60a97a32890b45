"""Programs that nobody prepared for perfdoctor: what their reports say, and what following them gives."""

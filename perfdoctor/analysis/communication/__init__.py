"""Collectives: of one rank, matched over ranks, and who waits for whom."""

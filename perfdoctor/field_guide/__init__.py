"""The field guide for one recording: each of its 51 pieces of advice, and whether it applies to this program."""

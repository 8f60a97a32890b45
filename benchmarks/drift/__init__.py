"""Programs that get slower over their run, each for one planted reason, and their twins that do not."""

"""The result: findings, the summary of a rank, the Report over all ranks."""

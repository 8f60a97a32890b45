"""Finding, RankSummary and Report: what an analysis results in, and how findings are priced and merged."""

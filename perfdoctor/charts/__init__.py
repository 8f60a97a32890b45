"""The charts of the page: from a rank to the small columns of `perfdoctor.report.chart_data`."""

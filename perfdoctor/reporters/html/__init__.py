"""The report as one HTML page that needs no network: text from a template, charts from data within the page."""

"""Report -> text: for a terminal, as JSON, as Markdown, and as tracks in a Chrome trace.

Only output.py and chrome.py touch files.
"""

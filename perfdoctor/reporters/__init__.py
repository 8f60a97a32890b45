"""Report -> text: terminal, JSON, Markdown, Chrome trace."""

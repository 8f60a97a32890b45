"""What an edit does to the source, a file for each kind of place."""

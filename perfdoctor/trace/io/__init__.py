"""How a path becomes text: files, compressed or not, URLs, standard input."""

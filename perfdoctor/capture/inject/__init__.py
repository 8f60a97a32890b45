"""What the user's interpreter loads: this folder goes first on PYTHONPATH, so it holds as little as can be."""

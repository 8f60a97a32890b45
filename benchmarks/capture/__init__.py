"""What recording costs the recorded program."""

"""The door for everybody who writes a rule."""

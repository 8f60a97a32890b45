"""The tables that people look at: what ran, grouped; each made from a rank when it is asked for."""

"""Accounts for every large slice: what is known of the time of a rank that no finding claims."""

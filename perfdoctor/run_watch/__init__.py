"""What concerns a whole run and not one window of it: drift, windows on demand, hangs."""

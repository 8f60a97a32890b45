"""Facts that are derived from one rank, each from explicit inputs; `perfdoctor.rank` assembles them."""

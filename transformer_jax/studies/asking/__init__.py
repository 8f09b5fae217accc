"""A question as a value: its design, its arms, the cells that answer it, its directory."""

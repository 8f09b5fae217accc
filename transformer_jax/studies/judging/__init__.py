"""From finished cells to a verdict."""

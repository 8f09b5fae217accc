"""The parts of a transformer: pure functions, and the Linen modules that own their parameters."""

"""What a comparison may say: tests, intervals, power and variance of arrays of scores."""

"""Statements of courses about transformers, tested: exact ones, errata, exercises, verdicts."""

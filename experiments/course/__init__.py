"""Tests of statements from courses about transformers, with errata, exercises and verdicts."""

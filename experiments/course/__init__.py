"""What courses say about transformers, tested: exact statements, errata, exercises, verdicts."""

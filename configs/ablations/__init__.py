"""Studies: questions about transformers, each with its arms and how it will be judged."""

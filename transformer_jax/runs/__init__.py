"""One run as a directory, and who writes it: files, checkpoints, records, pictures."""

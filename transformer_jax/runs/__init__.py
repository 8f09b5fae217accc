"""Runs as directories: files, checkpoints, records, pictures."""

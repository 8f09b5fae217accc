"""Templates for `python -m experiments.new`, one file per family; your name replaces `Mine`."""

"""Sources of examples: embedded data, or the user's own files.

files.py finds and reads files, with disk.py and folders.py; text.py and shards.py make token
streams (stream.py), and mixture.py joins several; tables.py reads rows of text, arrays.py reads
images and vectors, and synthetic.py draws made-up languages.
"""

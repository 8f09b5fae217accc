"""Less common components, one idea in each file, imported when they are chosen."""

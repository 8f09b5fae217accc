"""Less common components, one idea per file, imported when they are chosen."""

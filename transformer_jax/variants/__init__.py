"""Less common components, one idea or family per file, imported when chosen."""

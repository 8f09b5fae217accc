"""What is shown of studies and runs: tables, figures, pages, comparisons, archives."""

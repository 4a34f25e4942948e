"""Language models that write units: clients, budgets, transcripts, roles. What they write is judged by code alone."""

"""What is drawn from a report: one file for each form."""

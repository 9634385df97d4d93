"""What a recorded response contains, per dialect, in the form that the checks read."""

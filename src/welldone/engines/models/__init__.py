"""Model files: where they are stored, how they are downloaded and installed."""

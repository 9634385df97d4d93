"""Random faults against many clients. Every token names its request: nothing may be mixed up, lost or repeated."""

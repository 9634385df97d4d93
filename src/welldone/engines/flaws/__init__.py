"""Servers that are right but for one rule: for whoever tries a client, and to test the check with."""

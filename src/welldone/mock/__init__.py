"""A mock server for tests of clients: right answers, broken rules, injected faults."""

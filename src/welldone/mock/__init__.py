"""Mock server to test clients: correct answers, violations of single rules, injected faults."""

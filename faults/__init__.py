"""Fault plan: faults and attacks against real servers, observed behaviour, and limits that must hold."""

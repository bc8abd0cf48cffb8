"""Workloads: desired against observed, and the plan that closes the gap."""

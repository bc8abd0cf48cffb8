"""Controllers: thin shells, one per kind. Each observes, asks the core for a plan, and applies it."""

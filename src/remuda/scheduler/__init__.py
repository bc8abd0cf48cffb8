"""The scheduler's shell: pending pods -> `plan_placement` on a snapshot -> bindings."""

"""The scheduler's shell: pending pods -> `plan_in_steps` on a snapshot -> bindings."""

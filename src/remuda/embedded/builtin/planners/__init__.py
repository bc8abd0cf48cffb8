"""Decisions of the built-in controllers (Deployments, Jobs, node lifecycle, quotas). Pure, as `core` is: values in, a plan
out."""

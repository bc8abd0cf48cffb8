"""Commands about the cluster as a whole: `up`, `down`, `status`, nodes, objects, backups; `manager` and `agent` for real ones.

They read options and start what `runtime` puts together; no cluster is built here.
"""

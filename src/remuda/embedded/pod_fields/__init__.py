"""What becomes of each field of a PodSpec on the embedded cluster: honoured, warned about, or refused. Nothing is silent.

`field_table` says it field by field, `judge_pod` holds a pod or a template against the table, `field_page` writes the table into
docs/compatibility.md.
"""

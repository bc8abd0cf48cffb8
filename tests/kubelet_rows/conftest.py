"""Assertions in the shared rows explain themselves as those of tests do."""

import pytest

pytest.register_assert_rewrite(
    "tests.kubelet_rows.plugin_rows",
    "tests.kubelet_rows.pod_rows",
    "tests.kubelet_rows.rig",
)

"""What the kubelet does by event: one scenario per row of docs/kubelet-behaviour.md, run on a real kubelet and on ours.

`KubeletRows` is inherited by a test class per node; the fixture `rig` gives the node, `plugin` starts stock plugins on it. What
is asserted here was seen on the real kubelet of `make kube`; docs/kubelet-behaviour.md holds it against what is documented.
Each row has a resource of its own, so that what one leaves behind (a resource is remembered for five minutes) is no other's.
"""

from __future__ import annotations

from tests.kubelet_rows.plugin_rows import PluginRows
from tests.kubelet_rows.pod_rows import PodRows


class KubeletRows(PluginRows, PodRows):
    """Needs the fixtures `rig` and `plugin`."""

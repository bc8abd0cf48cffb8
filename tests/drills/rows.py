"""The rows of the failure checklist: what a user must be able to rely on. The words are shown in docs/failure-modes.md."""

from __future__ import annotations

import msgspec

ON_A_KUBELET = (6, 30, 58, 59, 60)  # rows that must hold on a real kubelet, too


class Row(msgspec.Struct, frozen=True):
    """`later`: needs DRA, which is not served yet."""

    number: int
    what: str
    later: bool = False


_DRA = {25, 45, 46, 47, 53, 56, 57}

_WHAT = """
1 A plugin's socket vanishes: nothing is offered, capacity stays for the grace, then both are 0; who runs is not touched
2 That is told as a lost plugin with its holders, not as failed devices
3 The plugin is back within the grace: counts are back, nobody restarted, no incident
4 It is back with a device missing: the holder is named and treated as on a failed device
5 A kubelet restart (counts to 0 and back) is held down, visibly: no incident, no quota freed, no reservation lost
6 A kubelet restart leaves pods on their devices with restart counts unchanged
7 After a reboot a pod that came before its plugin is tried again and ends up running
8 A pod rejected at a node's admission costs the workload's failure budget nothing
9 A thousand rejections alike leave a few pod objects and back off
10 A (node, resource) that rejects pod after pod is quarantined with them as evidence; other nodes work on
11 A quarantine survives a restart of the control plane and is lifted by a passed probe or an operator only
12 A node gets no device workload before driver, plugin and device count are confirmed
13 A node that boots with 7 of its model's 8 devices is flagged
14 Two instances of a plugin overlap during an upgrade: no dip, and either may be killed
15 A wrong version, a bad resource name or a dead endpoint is refused by name; our plugin tries again with back-off
16 Our plugin registers again when the kubelet's socket is made anew
17 A plugin call that hangs hits a deadline, and other pods start
18 A preferred choice that fails falls back to any valid set
19 A device whose holder is terminating is draining, and nobody else's until its processes are gone
20 A holder removed by force on a node that does not answer keeps its devices until the node answers or is dead
21 A job's pod on an unreachable node is replaced within a set time, also under podReplacementPolicy Failed
22 A readiness flake shorter than the tolerance evicts nobody
23 A request for a minimum driver is never placed on an older one; the refusal names the attribute
24 A driver roll-out stops at a failed canary; the rest of the pool is untouched
25 A crashed DRA driver's slices vanish, and a pod bound in that window is found and re-placed
26 A container whose CDI specs vanished over a reboot starts once they are made again, or its pod is replaced
27 A pod is never bound where the node does not name the resource
28 The same device id in two resources is two devices
29 A node whose less important pods starve the plugin is reported, and plugin pods are protected
30 One unhealthy device: one less is offered, capacity stays, and pod, container and device are named
31 A crash and a bad device are one incident with device, message, exit code, node and workload
32 The incident shows the device as it was when the pod died, after the pod is gone
33 A crash shortly before its device is reported bad is the device's: re-attributed, and charged to its budget
34 Each device-failure policy of a workload has its documented outcome
35 A restartPolicy Always pod on a failed device moves to a healthy one and sits in no crash loop
36 A failed device nobody uses is removed alone; the node's others go on serving
37 Free is healthy less held, computed as sets: nothing is subtracted twice, free is never negative
38 A short flap evicts nobody; too many flaps are a quarantine
39 A quarantined device returns after probe and soak only; a plugin restart does not launder it
40 Fault codes map to application, reset, reboot or replace; an unknown code is taken conservatively
41 Repair climbs reset, reboot, replace with timeouts and a bound of attempts, then stops and pages
42 No more than the limit of a pool is under remedy; the breaker shows, and devices are given back while it is open
43 A node of a multi-node domain is never recycled alone; the plan names the whole domain
44 A dry run lists devices, pods and namespaces it would hit and changes nothing
45 NoExecute on a DRA device removes exactly the holders that do not tolerate it
46 A tainted DRA device under one member is a gang's matter, not a lone pod's
47 Device taints add up across sources; unknown effects do nothing
48 A device, or an agent, that is silent for too long makes devices Unknown; nobody is taken off them
49 Health entries use upstream's names and stay within 1024 characters
50 Devices of sidecar and init containers are covered too
51 One GPU off the bus leaves the others of its node allocatable
52 A device with leftovers of an unclean exit is withheld until it is clean
53 Binding waits for a device's readiness conditions
54 A failed GPU fails all its slices; a failed slice leaves its siblings running
55 Slices can never exceed what their device has; a release returns it exactly once
56 Incompatible partition modes are refused at placement
57 A plain resource request is satisfied through a DeviceClass and never counted twice
58 An exit code with a restart rule restarts just that container although the pod says Never; the first matching rule wins
59 Restart-all keeps UID, address, devices and volumes, runs init containers again, and shows in a condition
60 One of 64 is killed: 63 keep pod and devices, and all pass one barrier on the same attempt
61 A restart in place is refused when the device under the pod is not healthy
62 A replacement prefers the same node when node and devices are healthy, and says so
63 Code, device, infra, preemption and maintenance have budgets and counters of their own
64 Retry limits per index keep a bad index from the rest
65 A non-retriable exit code ends the job at once, and the reason names the rule
66 Success of the leader completes the job and removes the rest
67 No two live pods ever hold one index
68 A planned restart inherits no crash-loop back-off, and the cap of the delay can be set
69 A restarted run resumes from the last committed checkpoint and reports the steps lost
70 A rank that makes no progress for k median steps is treated as failed
71 A gang below its minimum says so in a live condition
72 A replacement member is placed although others have completed
73 Capacity freed by a remedy goes first to the gang that lost it
74 A replacement stays in the gang's domain, else the whole gang moves; two nodes failing together work too
75 A drain of a node with a gang and a disruption budget completes
76 Planned maintenance: told, checkpoint asked, gang moved before the window, reported
77 A rank that stays slower than its peers marks its device Degraded and is named to the device
78 A uniform slow-down blames nobody
79 Degraded devices are avoided, and usable by who tolerates them
80 A slow device means carry on, swap at the next checkpoint, or swap now, as the workload says
"""


def _parse() -> tuple[Row, ...]:
    rows = []
    for line in _WHAT.strip().splitlines():
        number, _, what = line.partition(" ")
        rows.append(Row(int(number), what, int(number) in _DRA))
    return tuple(rows)


ROWS = _parse()

"""remuda-launch: PID 1 of a training container, and the protocol it speaks with its node's agent.

Everything here is standard library only and imports nothing of Remuda outside this package, because it runs in the
user's image (packed as one zipapp, see `zipapp.py`), where only a Python interpreter may be assumed.

    protocol          the messages, one JSON object a line (sans-IO; shared by launcher, agent and simulator)
    launcher_machine  the launcher's decisions: input -> actions (sans-IO; real launchers and simulated pods run the same one)
    actions           what the machine asks for
    launcher_shell    one poll loop: turns the world into inputs and actions into system calls
    user_process      the user's process tree: start, signal, kill, reap
    progress_inbox    progress reports of user code
    checkpoints       which checkpoints of a rank are usable
    checkpoint_looks  asks that, and whether what was reported is on disk, of a file system that may hang
    forked_look       a question asked by a process of its own
    zipapp            packs all this into one file, and says how to run it
    pythonpath/       what user code may import: `import remuda_train`
    small_records, jsonline   dataclasses and JSON without their import time

Sixty-four of these start together on a small machine, so start-up time is a feature: the modules on the start-up path
avoid `typing`, `dataclasses`, `json`, `socket`, `signal`, `selectors` and `subprocess`, which together cost several
times more than starting the interpreter (a test pins the list of imported modules).
"""

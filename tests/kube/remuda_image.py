"""An image with Remuda in it, as deploy/README.md has one built: the packages of pins/run.txt, the sources, `remuda` to start.

Made from what the tests run with. Beside it lies a machine model with the devices of six nodes, so that the examples find room on
one.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import tempfile
from pathlib import Path

from tests.kube.control_plane import ROOT
from tests.kube.real_node_images import REGISTRY, Layer, archive, box_layer, libraries_of, python_layer

REMUDA = f"{REGISTRY}/remuda:1"
LIBRARY = "/opt/remuda/lib"
BIG_MODEL = "/opt/remuda/big-node.json"
DEVICES = 48


def big_model() -> str:
    """One node with the devices of six."""
    devices = [
        {"index": n, "type": "NVIDIA-H100-80GB-HBM3", "memoryBytes": 85520809984, "numa": 0, "root": f"root-{n // 8}"}
        for n in range(DEVICES)
    ]
    body = {"name": "big-node", "description": "a test's", "numaNodes": 1, "cpus": ["0-63"], "devices": devices}
    return json.dumps(body)


def remuda_layer(scratch: Path) -> Layer:
    layer = Layer()
    sources = ROOT / "src" / "remuda"
    for path in sources.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            layer.files[f"{LIBRARY}/remuda/{path.relative_to(sources)}"] = path
    needed: set[str] = set()
    for name in re.findall(r"^([a-z0-9-]+)==", (ROOT / "pins" / "run.txt").read_text(), flags=re.MULTILINE):
        for file in importlib.metadata.distribution(name).files or ():
            path = Path(str(file.locate())).resolve()
            if ".." in file.parts or not path.is_file() or "__pycache__" in file.parts:
                continue  # programs in the environment's bin
            layer.files[f"{LIBRARY}/{file}"] = path
            if ".so" in path.suffixes:
                needed |= {each for each in libraries_of(path) if "/site-packages/" not in each}
    for each in needed:
        layer.files[each] = Path(each).resolve()
    model = scratch / "big-node.json"
    model.write_text(big_model())
    layer.files[BIG_MODEL] = model
    return layer


def write_remuda_image(path: Path) -> None:
    """A `docker save` archive."""
    with tempfile.TemporaryDirectory() as scratch:
        layers = [box_layer().tar(), python_layer().tar(), remuda_layer(Path(scratch)).tar()]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": LIBRARY, "PYTHONDONTWRITEBYTECODE": "1"}
    entry = ["/usr/bin/python3", "-m", "remuda.cli"]
    path.write_bytes(archive(REMUDA, layers, [], env, entry))

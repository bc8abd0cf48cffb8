"""Container images made from files of this machine: no registry is asked.

    pause    one static busybox that waits; every pod's sandbox
    box      the same busybox with its usual names
    python   box + the interpreter that runs the tests, its standard library and the libraries both need

Each is a `docker save` archive, written in pure Python into the cache beside the Kubernetes binaries and named after what is
in it, so that it is made once per machine and interpreter. Nothing in an archive depends on when it was made.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUSYBOX = "busybox"  # Debian: busybox-static
APPLETS = "cat cp date echo env false kill ls mkdir mv ps rm sh sleep tail test touch true".split()
REGISTRY = "remuda.test"  # never resolved: the images are there and nothing pulls
PAUSE, BOX, PYTHON = f"{REGISTRY}/pause:1", f"{REGISTRY}/box:1", f"{REGISTRY}/python:1"

# Parts of the standard library that no container of ours imports, by the first name below it.
LEFT_OUT = frozenset(
    "test tests idlelib tkinter turtledemo lib2to3 ensurepip site-packages dist-packages config pydoc_data".split()
)


class ImageError(Exception):
    """An image cannot be made here; the message names what is missing."""


@dataclass
class Layer:
    """Files, links and directories of one image, by absolute path inside it."""

    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)

    def tar(self) -> bytes:
        buffer = io.BytesIO()
        entries: dict[str, tarfile.TarInfo] = {}
        for path in [*self.files, *self.links, *self.directories]:
            for parent in Path(path).parents:
                self.directories.add(str(parent))
        for path in self.directories - {"/"}:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entries[path] = entry
        for path, target in self.links.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            entries[path] = entry
        for path, source in self.files.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            status = source.stat()
            entry.size, entry.mode, entry.mtime = status.st_size, status.st_mode & 0o755, int(status.st_mtime)
            entries[path] = entry
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(entries):
                if path in self.files:
                    with self.files[path].open("rb") as source_file:
                        archive.addfile(entries[path], source_file)
                else:
                    archive.addfile(entries[path])
        return buffer.getvalue()


def busybox() -> Path:
    found = shutil.which(BUSYBOX)
    if found is None:
        raise ImageError("busybox is not installed; run `make kube`, or: apt-get install -y busybox-static")
    path = Path(found).resolve()
    if libraries_of(path):
        raise ImageError(f"{path} is not static; run `make kube`, or: apt-get install -y busybox-static")
    return path


def box_layer() -> Layer:
    layer = Layer(files={"/bin/busybox": busybox()}, links={f"/bin/{name}": "busybox" for name in APPLETS})
    layer.directories |= {"/tmp", "/proc", "/sys", "/dev", "/run", "/etc"}
    return layer


def python_layer() -> Layer:
    """The interpreter under its own path, so that it finds its library as it does here, and as /usr/bin/python3."""
    executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    library = Path(sysconfig.get_path("stdlib"))
    layer = Layer(files={str(executable): executable})
    if str(executable) != "/usr/bin/python3":
        layer.links["/usr/bin/python3"] = str(executable)
    needed = set(libraries_of(executable))
    for path in _library_files(library):
        layer.files[str(path)] = path
        if path.suffix == ".so":
            needed |= set(libraries_of(path))
    for name in needed:  # under the name the loader looks for, whatever file is behind it
        layer.files[name] = Path(name).resolve()
    return layer


def _library_files(library: Path) -> Iterator[Path]:
    tag = f".{sys.implementation.cache_tag}.pyc"
    for directory, names, files in os.walk(library):
        at = Path(directory)
        names[:] = sorted(n for n in names if n not in LEFT_OUT and not n.startswith("config-"))
        for name in sorted(files):
            # Compiled files for this interpreter come along: with the source's time kept they are valid.
            is_wanted = name.endswith((".py", ".so")) or (at.name == "__pycache__" and name.endswith(tag))
            if is_wanted and not name.startswith("_test"):
                yield at / name


def libraries_of(path: Path) -> list[str]:
    """Absolute names of the shared libraries the loader would take; none for a static file."""
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return []
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, flags=re.MULTILINE)


def archive(
    name: str, layers: Sequence[bytes], command: Sequence[str], env: Mapping[str, str], entry: Sequence[str] = ()
) -> bytes:
    """A `docker save` archive of one image."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {
            "Entrypoint": list(entry),
            "Cmd": list(command),
            "Env": [f"{key}={value}" for key, value in env.items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "tests/kube"} for _ in digests],
    }
    encoded = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    files = {f"{digest}/layer.tar": layer for digest, layer in zip(digests, layers, strict=True)}
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": list(files)}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for path, data in {config_name: encoded, **files, "manifest.json": json.dumps(manifest).encode()}.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def image_files(cache: Path) -> dict[str, Path]:
    """The archives of all three, made when they are not there yet."""
    version = hashlib.sha256(
        "\0".join([Path(__file__).read_text(), sys.version, sys.base_prefix, _stamp(busybox())]).encode()
    ).hexdigest()[:16]
    directory = cache / f"images-{version}"
    names = {PAUSE: directory / "pause.tar", BOX: directory / "box.tar", PYTHON: directory / "python.tar"}
    if all(path.exists() for path in names.values()):
        return names
    directory.mkdir(parents=True, exist_ok=True)
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    box = box_layer().tar()
    _write(names[PAUSE], archive(PAUSE, [box], ["/bin/busybox", "tail", "-f", "/dev/null"], env))
    _write(names[BOX], archive(BOX, [box], ["/bin/sh"], env))
    _write(names[PYTHON], archive(PYTHON, [box, python_layer().tar()], ["/usr/bin/python3"], env))
    for stale in cache.glob("images-*"):
        if stale != directory:
            shutil.rmtree(stale, ignore_errors=True)
    return names


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path}:{status.st_size}:{status.st_mtime_ns}"


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(f".tmp-{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)

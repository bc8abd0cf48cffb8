"""Packing the launcher into the one file that is mounted into a user's container, and the command that runs it.

    remuda-launch.pyz
      __main__.py                                  python remuda-launch.pyz -- COMMAND
      remuda/__init__.py  remuda/launch/*          the launcher, under its own name
      remuda/launch/pythonpath/remuda_train.py     what user code may import

Only the *inside* directory `remuda-launch.pyz/remuda/launch/pythonpath` goes on the child's PYTHONPATH (Python imports
from a directory inside a zip file as from any other), so `import remuda_train` works and a `remuda` package installed
in the user's image is never shadowed. The launcher itself runs isolated (-I -S): nothing on the user's PYTHONPATH can
shadow its modules either.

Compiled code is stored beside the source: it saves the compilation of every module at every start. It is of the kind
that is not checked against the source, and an interpreter of another version passes over it and compiles the source.
The same sources and interpreter give the same bytes.
"""

import importlib.util
import io
import marshal
import os
import zipfile
from pathlib import Path

_HERE = Path(__file__).parent
_MODULES = (
    "__init__.py",
    "__main__.py",
    "actions.py",
    "checkpoint_looks.py",
    "checkpoints.py",
    "forked_look.py",
    "jsonline.py",
    "launcher_machine.py",
    "launcher_shell.py",
    "log_readback.py",
    "progress_inbox.py",
    "protocol.py",
    "small_records.py",
    "user_process.py",
    "work_directory.py",
    "pythonpath/remuda_train.py",
)
_MAIN = b"import sys\n\nfrom remuda.launch.__main__ import main\n\nsys.exit(main())\n"
# `python file.pyz` takes a detour through `runpy` that costs a third of the whole start; this does not.
_RUN = "import sys;sys.path.insert(0,sys.argv.pop(1));from remuda.launch.__main__ import main;sys.exit(main())"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip file can hold
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def _compiled_launcher_module(name: str, source: bytes) -> bytes:
    """A .pyc that is valid whatever its source says (PEP 552, unchecked hash)."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    # Version 2: the later ones store back-references by reference count, which differs from one run to the next.
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source) + marshal.dumps(code, 2)


def zipapp_bytes() -> bytes:
    files = {"__main__.py": _MAIN, "remuda/__init__.py": b""}
    files |= {f"remuda/launch/{name}": (_HERE / name).read_bytes() for name in _MODULES}
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # stored: no `zlib` to load at start
        for name, source in sorted(files.items()):
            for path, data in ((name + "c", _compiled_launcher_module(name, source)), (name, source)):
                entry = zipfile.ZipInfo(path, _EPOCH)
                entry.create_system = 3  # Unix, wherever it is built
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data)
    return buffer.getvalue()


def build_zipapp(path: str | os.PathLike[str]) -> Path:
    """Write the zipapp, executable, replacing what was there in one step; a running launcher keeps its old file."""
    target = Path(path)
    data = zipapp_bytes()
    if not (target.exists() and target.read_bytes() == data):
        temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        temporary.replace(target)
    return target


def launcher_zipapp_argv(
    user_argv: list[str], pyz_path: str | os.PathLike[str], python: str | os.PathLike[str] = "python3"
) -> list[str]:
    """What to run as the container's first process so that the launcher runs `user_argv`.

    -X utf8: environment values from the agent reach the command as UTF-8, whatever locale the image has.
    """
    return [str(python), "-I", "-S", "-X", "utf8", "-c", _RUN, str(pyz_path), "--", *user_argv]

"""The packed launcher: the same bytes every time, cheap to start, invisible to the user's own imports."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from remuda.launch import zipapp
from tests.builders.waiting import PATIENCE_S

LAUNCH = Path(zipapp.__file__).parent
OTHER_PYTHONS = ("python3.12", "python3.13", "python3.14")


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_same_sources_give_the_same_bytes(tmp_path: Path, pyz: Path) -> None:
    again = zipapp.build_zipapp(tmp_path / "again.pyz")
    assert again.read_bytes() == pyz.read_bytes()
    command = "import sys; from remuda.launch.zipapp import build_zipapp; build_zipapp(sys.argv[1])"
    result = run(sys.executable, "-c", command, str(tmp_path / "other.pyz"), PYTHONHASHSEED="7")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "other.pyz").read_bytes() == pyz.read_bytes()


def test_building_again_leaves_an_equal_file_alone(tmp_path: Path) -> None:
    path = zipapp.build_zipapp(tmp_path / "x.pyz")
    before = path.stat()
    zipapp.build_zipapp(path)
    assert path.stat().st_ino == before.st_ino
    path.write_bytes(b"old")
    zipapp.build_zipapp(path)
    assert path.stat().st_size == before.st_size
    assert os.access(path, os.X_OK)
    assert [p.name for p in tmp_path.iterdir()] == ["x.pyz"]


def test_every_module_of_the_package_is_in_it(pyz: Path) -> None:
    """Except the one that builds it."""
    sources = {path.relative_to(LAUNCH).as_posix() for path in LAUNCH.rglob("*.py")} - {"zipapp.py"}
    packed = {name.removeprefix("remuda/launch/") for name in zipfile.ZipFile(pyz).namelist() if name.endswith(".py")}
    assert packed - {"__main__.py", "remuda/__init__.py"} | {"__main__.py"} == sources


def test_nothing_slow_is_imported_at_start(pyz: Path) -> None:
    """Each of these costs milliseconds, and every rank of a gang pays them on the same few cores."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import remuda.launch.__main__; "
        "print(*sorted(name for name in sys.modules if not name.startswith(('encodings', 'importlib', 'remuda'))))"
    )
    loaded = set(run(sys.executable, "-I", "-S", "-c", code, str(pyz)).stdout.split())
    assert "select" in loaded
    assert not loaded & {
        "collections", "contextlib", "ctypes", "dataclasses", "enum", "functools", "hashlib", "json", "logging", "re",
        "runpy", "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "typing", "zlib",
    }  # fmt: skip


def test_compiled_code_is_used_and_the_source_is_the_fallback(pyz: Path, tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from remuda.launch import protocol as m; print(m.__cached__)"
    assert run(sys.executable, "-I", "-S", "-c", code, str(pyz)).stdout.strip().endswith("protocol.pyc")
    foreign = tmp_path / "foreign.pyz"
    with zipfile.ZipFile(pyz) as source, zipfile.ZipFile(foreign, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, b"\0\0\0\0" + data[4:] if name.endswith(".pyc") else data)
    result = run(*zipapp.launcher_zipapp_argv(["sh", "-c", "exit 5"], foreign, sys.executable))
    assert result.returncode == 5, result.stderr


@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_other_interpreters_run_it(pyz: Path, python: str) -> None:
    if run("sh", "-c", f"{python} -c ''").returncode != 0:
        pytest.skip(f"{python} is not installed")
    result = run(*zipapp.launcher_zipapp_argv(["sh", "-c", "exit 5"], pyz, python))
    assert result.returncode == 5, result.stderr


def test_it_also_runs_as_a_file(pyz: Path) -> None:
    assert run(sys.executable, str(pyz), "--", "sh", "-c", "exit 5").returncode == 5
    assert run(sys.executable, "-m", "remuda.launch", "sh", "-c", "exit 5").returncode == 5
    assert "remuda-launch -- COMMAND" in run(sys.executable, str(pyz), "--help").stdout


def test_the_command_gets_exactly_its_arguments(pyz: Path) -> None:
    args = ["", "a b", "--", "-c", "'", "\n", "é"]
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    result = run(*zipapp.launcher_zipapp_argv([sys.executable, "-c", code, *args], pyz, sys.executable))
    assert result.stdout.strip() == '["", "a b", "--", "-c", "\'", "\\n", "\\u00e9"]'


def test_user_code_sees_the_helper_and_its_own_remuda(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "remuda").mkdir()
    (tmp_path / "remuda/__init__.py").write_text("owner = 'user'\n")
    code = "import remuda, remuda_train, os; print(remuda.owner, remuda_train.attempt(), os.environ['PYTHONPATH'])"
    argv = zipapp.launcher_zipapp_argv([sys.executable, "-S", "-c", code], pyz, sys.executable)
    result = run(*argv, PYTHONPATH=str(tmp_path))
    assert result.stdout.split() == ["user", "1", f"{tmp_path}:{pyz}/remuda/launch/pythonpath"], result.stderr


def test_without_a_remuda_of_its_own_user_code_sees_none(pyz: Path) -> None:
    code = "import remuda_train\ntry:\n import remuda\nexcept ModuleNotFoundError: print('none')"
    argv = zipapp.launcher_zipapp_argv([sys.executable, "-S", "-c", code], pyz, sys.executable)
    assert run(*argv).stdout == "none\n"


def test_modules_on_the_users_path_cannot_break_the_launcher(pyz: Path, tmp_path: Path) -> None:
    for name in ("os", "select", "protocol", "remuda", "encodings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    result = run(*zipapp.launcher_zipapp_argv(["true"], pyz, sys.executable), PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr


def test_the_installed_package_offers_the_helper_alone(tmp_path: Path) -> None:
    """Without the zipapp, a plain directory goes on PYTHONPATH: nothing in it may shadow anybody's module."""
    assert [path.name for path in (LAUNCH / "pythonpath").iterdir() if path.suffix] == ["remuda_train.py"]

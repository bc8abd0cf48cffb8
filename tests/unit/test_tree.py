"""The shape of the source tree: sizes, names, the picture in ARCHITECTURE.md, and what the launcher imports.

These rules keep the tree readable and are cheap to break without noticing, so a test holds them. The directories are
read afresh on every run; a new package needs only its line in ARCHITECTURE.md.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "remuda"

MAX_LINES = 800
# Names that say nothing about the job, so anything ends up in them.
EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager", "base"})
# CPython's C modules that were renamed between the versions we support; a running Python knows only its own names.
STDLIB = sys.stdlib_module_names | {"_sha256", "_sha2"}

TREE_MARKS = str.maketrans("│├└─", "    ")
TREE_ENTRY = re.compile(r"^(?P<indent> *)(?P<names>[a-z_][a-z0-9_]*/(?: +[a-z_][a-z0-9_]*/)*)(?: |$)")


def modules() -> Iterator[Path]:
    for top in ("src", "tests", "bench", "tools"):
        yield from sorted((ROOT / top).rglob("*.py"))


def packages() -> set[str]:
    """Paths of every directory below src/remuda that holds Python modules."""
    return {
        directory.relative_to(PACKAGE).as_posix()
        for directory in PACKAGE.rglob("*")
        if directory.is_dir() and directory.name != "__pycache__" and any(directory.glob("*.py"))
    }


def drawn_packages(text: str) -> set[str]:
    """Package paths in the tree that a Markdown text draws under a line `src/remuda/`.

    Nesting is by indentation; one line may name several siblings (`web/ cli/  words about them`); lines that name no
    directory (modules, prose) are passed over. The tree ends at the closing fence or at a line indented no deeper
    than its root.
    """
    drawn: set[str] = set()
    root_indent: int | None = None
    parents: list[tuple[int, str]] = []
    for raw in text.splitlines():
        line = raw.translate(TREE_MARKS).rstrip()
        indent = len(line) - len(line.lstrip())
        if root_indent is None:
            if line.lstrip().split(" ")[0] == "src/remuda/":
                root_indent = indent
            continue
        if line.lstrip().startswith("```") or (line and indent <= root_indent):
            break
        entry = TREE_ENTRY.match(line)
        if entry is None:
            continue
        while parents and parents[-1][0] >= indent:
            parents.pop()
        prefix = parents[-1][1] + "/" if parents else ""
        names = [name.rstrip("/") for name in entry["names"].split()]
        drawn.update(prefix + name for name in names)
        parents.append((indent, prefix + names[-1]))
    return drawn


def imported_modules(source: str) -> set[str]:
    """Every module that a source imports, at any depth of the code; relative imports start with a dot."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert not too_long, f"split these by behaviour, the limit is {MAX_LINES} lines: {too_long}"


def test_names_say_what_a_module_does() -> None:
    nameless = [
        str(path.relative_to(ROOT))
        for path in modules()
        if EMPTY_NAMES & {path.stem, *path.relative_to(ROOT).parent.parts}
    ]
    assert not nameless, f"name these after what they hold: {nameless}"


def test_architecture_draws_the_tree_as_it_is() -> None:
    drawn = drawn_packages((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    actual = packages()
    assert drawn, "ARCHITECTURE.md has no tree under a line `src/remuda/`"
    assert actual - drawn == set(), "these packages are missing from the tree in ARCHITECTURE.md"
    assert drawn - actual == set(), "ARCHITECTURE.md draws these packages, but src/remuda has no such directory"


def test_architecture_names_every_controller() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    actual = {
        path.stem
        for path in (PACKAGE / "controllers").glob("*.py")
        if re.search(r"^class \w*Controller\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == actual


def test_each_package_says_what_lives_there() -> None:
    for package in packages() - {"launch/pythonpath"}:  # a directory for the user's sys.path, not a package
        source = (PACKAGE / package / "__init__.py").read_text(encoding="utf-8")
        words = (ast.get_docstring(ast.parse(source)) or "").split()
        assert len(words) >= 10, f"src/remuda/{package}/__init__.py: say what lives here and what must not"


def test_launch_uses_the_standard_library_only() -> None:
    """It runs inside the user's container, where nothing of ours is installed."""
    sources = sorted((PACKAGE / "launch").rglob("*.py"))
    assert sources
    for path in sources:
        for module in imported_modules(path.read_text(encoding="utf-8")):
            allowed = module.partition(".")[0] in STDLIB or f"{module}.".startswith("remuda.launch.")
            assert allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_a_drawn_tree_is_read_by_indentation() -> None:
    text = """
prose about api/ before the tree
```
src/remuda/            the package
  api/        types
  core/       decisions
    failure/    verdicts
    placement/  gangs
  web/ cli/   several on one line, with a/b in words
    html.py     a module, not a package
deploy/       outside
```
  late/
"""
    assert drawn_packages(text) == {"api", "core", "core/failure", "core/placement", "web", "cli"}
    assert drawn_packages("```\nsrc/remuda/\n├── api/\n├── core/\n│   └── failure/\n└── kube/\n```\n") == {
        "api",
        "core",
        "core/failure",
        "kube",
    }

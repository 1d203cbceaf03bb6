"""Print the tree for docs/architecture.md: each folder and file with the first line of its docstring.

    python -m tools.tree
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("data_contracts", "xcmodels", "tasks", "xcflow", "serving", "flows")


def tree() -> list[str]:
    """Return a line per folder and per file, packages in the order of the layers."""
    return [line for package in PACKAGES for line in _folder(ROOT / package, 0)]


def _folder(folder: Path, depth: int) -> list[str]:
    pad = "    " * depth
    lines = [f"{pad}{folder.name + '/':<{30 - len(pad)}} {_first_line(folder / '__init__.py')}"]
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            lines += _folder(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(f"{pad}    {path.name:<{26 - len(pad)}} {_first_line(path)}")
    return lines


def _first_line(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


if __name__ == "__main__":
    print("\n".join(tree()))

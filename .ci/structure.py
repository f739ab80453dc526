#!/usr/bin/env python3
"""Checks the structure of the crates: no cycle between modules, SQL only in stores, no promise without its test, no broken
link, none of the words that the glossary replaces everywhere, and no line of Rust above 120 characters.

Usage: .ci/structure.py [crate ...]    (all crates of the workspace without arguments)

A module is a file. It depends on the modules whose items it names through `crate::`, `super::` or `self::`, wherever
in the file; an item that a module re-exports (`pub use`) belongs to the module that defines it. Tests do not count.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = {
    "schemas": "schemas/src",
    "acls": "acls/src",
    "service": "service/src",
    "ingest": "ingest/src",
    "processor": "processor/src",
    "api": "api/src",
    "dispatcher": "dispatcher/src",
    "tests": "tests/src",
    "bench": "bench/src",
    "devstack": "deploy/devstack/src",
}
# Where statements may stand, besides files named store.rs and .sql files.
STORES = (
    "api/src/store/",
    "dispatcher/src/store/",
    "processor/src/clickhouse/",
    "service/src/clickhouse",
    "service/src/postgres",
    "schemas/src/",
)
# Programs that hold no data of Hopline: what they ask the engines is their subject.
WITHOUT_STORES = ("bench/", "tests/", "deploy/")
SQL = re.compile(
    r'"\s*(?:SELECT\s|INSERT INTO\s|UPDATE\s+\w+|DELETE FROM\s|WITH\s+\w+\s+AS\s|CREATE\s+TABLE|ALTER\s+TABLE'
    r"|TRUNCATE|LOCK\s+TABLE|SET\s+(?:LOCAL\s+)?\w+\s*=)"
)

WORDS = re.compile(r"\b(?:whoever|so many|what is no)\b", re.IGNORECASE)
# The glossary and this file name them; a migration is never edited.
WITH_WORDS = ("docs/glossary.md", "schemas/postgres/0004_links_complete.sql", ".ci/structure.py")


def code_of(text: str) -> str:
    """Returns a file without comments and without its tests."""
    text = re.sub(r"(?m)^\s*//.*$", "", text)
    return re.split(r"(?m)^#\[cfg\(test\)\]\nmod \w+ \{", text)[0]


def expand(tree: str) -> list[list[str]]:
    """Lists the paths of a use tree: `a::{b, c::d}` gives a::b and a::c::d."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        return [tree.split(" as ")[0].strip().split("::")]
    prefix = tree[:brace].removesuffix("::")
    inner, depth, part, parts = tree[brace + 1 : tree.rfind("}")], 0, "", []
    for letter in inner:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    parts.append(part)
    head = prefix.split("::") if prefix else []
    return [head + path for part in parts if part.strip() for path in expand(part)]


class Crate:
    """The modules of one crate and what each names of the others."""

    def __init__(self, folder: Path):
        self.code: dict[tuple[str, ...], str] = {}
        self.files: dict[tuple[str, ...], Path] = {}
        for file in sorted(folder.rglob("*.rs")):
            parts = file.relative_to(folder).with_suffix("").parts
            if parts[0] == "main" or parts[0] == "bin":
                # Programs are crates: nothing can name them. Their own modules are below src/bin/<name>/.
                if len(parts) < 3:
                    continue
                parts = parts if parts[-1] != "main" else parts[:-1]
            module = parts[:-1] if parts[-1] in ("mod", "lib") else parts
            self.code[module] = code_of(file.read_text())
            self.files[module] = file.relative_to(ROOT)
        self.reexports = {module: self._reexports(module) for module in self.code}

    def _root(self, module: tuple[str, ...]) -> tuple[str, ...]:
        return module[:2] if module[:1] == ("bin",) else ()

    def _absolute(self, module: tuple[str, ...], path: list[str]) -> list[str] | None:
        """Resolves the beginning of a path; None for what is of another crate."""
        here = list(module)
        if path[0] == "crate":
            return list(self._root(module)) + path[1:]
        if path[0] == "self":
            return here + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                here, path = here[:-1], path[1:]
            return here + path
        if tuple(here + path[:1]) in self.code:
            return here + path
        return None

    def _reexports(self, module: tuple[str, ...]) -> dict[str, list[str]]:
        found = {}
        for tree in re.findall(r"(?m)^pub(?:\([\w\s]+\))? use ([^;]+);", self.code[module]):
            for path in expand(" ".join(tree.split())):
                absolute = self._absolute(module, path)
                if absolute:
                    found[path[-1]] = absolute
        return found

    def _home(self, path: list[str], seen: frozenset = frozenset()) -> tuple[str, ...] | None:
        """The module that defines what a path names."""
        for length in range(len(path), -1, -1):
            module = tuple(path[:length])
            if module not in self.code:
                continue
            if length < len(path):
                target = self.reexports[module].get(path[length])
                if target and (module, path[length]) not in seen:
                    return self._home(target + path[length + 1 :], seen | {(module, path[length])})
            return module
        return None

    def dependencies(self, module: tuple[str, ...]) -> set[tuple[str, ...]]:
        code = self.code[module]
        paths = []
        for line in re.finditer(r"(?m)^\s*(pub(?:\([\w\s]+\))? )?use ([^;]+);", code):
            if not line[1]:
                paths += expand(" ".join(line[2].split()))
        code = re.sub(r"(?m)^\s*(?:pub(?:\([\w\s]+\))? )?use [^;]+;", "", code)
        # A visibility names a module and needs nothing of it.
        code = re.sub(r"pub\([^)]*\)", "", code)
        paths += [path.split("::") for path in re.findall(r"\b((?:crate|self|super)(?:::\w+)+)", code)]
        children = [m[-1] for m in self.code if m[:-1] == module and m]
        if children:
            paths += [path.split("::") for path in re.findall(rf"(?<![\w:])((?:{'|'.join(children)})(?:::\w+)+)", code)]
        found = set()
        for path in paths:
            absolute = self._absolute(module, path)
            home = self._home(absolute) if absolute is not None else None
            if home is not None and home != module:
                found.add(home)
        return found

    def cycles(self) -> list[list[tuple[str, ...]]]:
        """Tarjan's strongly connected components with more than one module."""
        graph = {module: sorted(self.dependencies(module)) for module in self.code}
        index, low, stack, on, found = {}, {}, [], set(), []

        def visit(node):
            index[node] = low[node] = len(index)
            stack.append(node)
            on.add(node)
            for other in graph[node]:
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in on:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                component = []
                while True:
                    last = stack.pop()
                    on.discard(last)
                    component.append(last)
                    if last == node:
                        break
                if len(component) > 1:
                    found.append(sorted(component))

        for node in graph:
            if node not in index:
                visit(node)
        return found


def main() -> int:
    sys.setrecursionlimit(10_000)
    faults = 0
    for name in sys.argv[1:] or CRATES:
        crate = Crate(ROOT / CRATES[name])
        for cycle in crate.cycles():
            faults += 1
            print(f"{name}: {len(cycle)} modules import each other:")
            for module in cycle:
                inside = [other for other in sorted(crate.dependencies(module)) if other in cycle]
                print(f"    {crate.files[module]} -> {', '.join('::'.join(other) or 'lib' for other in inside)}")
        for module, file in crate.files.items():
            if file.name == "store.rs" or str(file).startswith(STORES + WITHOUT_STORES):
                continue
            text = (ROOT / file).read_text()
            for number, line in enumerate(code_of_lines(text), 1):
                if SQL.search(line) or "sqlx::query" in line:
                    faults += 1
                    print(f"{file}:{number}: SQL outside of a store: {line.strip()[:80]}")
    for fault in broken_links() + unknown_tests() + faulty_lines():
        faults += 1
        print(fault)
    return 1 if faults else 0


def unknown_tests() -> list[str]:
    """The tests that a document or the configuration of their runner names, and no file defines."""
    named = {
        "docs/promises.md": r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`",
        ".config/nextest.toml": r"test\(=(?:\w+::)*(\w+)\)",
    }
    sources = [file.read_text() for crate in CRATES.values() for file in (ROOT / crate).parent.rglob("*.rs")]
    defined = set(re.findall(r"fn (\w+)\(", "\n".join(sources)))
    found = [(file, test) for file, name in named.items() for test in re.findall(name, (ROOT / file).read_text())]
    return [f"{file}: there is no test {test}" for file, test in found if test not in defined]


def faulty_lines() -> list[str]:
    """Words that the glossary replaces, and lines of Rust above 120 characters that can be broken: not those of a raw
    string or without a space."""
    found = []
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        if name.endswith(("-lock.json", ".lock")) or not (ROOT / name).is_file():
            continue
        # What is not text has no words.
        lines = (ROOT / name).read_bytes().decode(errors="ignore").split("\n")
        for number, line in enumerate(lines, 1):
            if name not in WITH_WORDS and (word := WORDS.search(line)):
                found.append(f"{name}:{number}: '{word[0]}', see docs/glossary.md: {line.strip()[:80]}")
            if name.endswith(".rs") and len(line) > 120 and " " in line.strip() and 'r#"' not in line:
                found.append(f"{name}:{number}: {len(line)} characters")
    return found


def broken_links() -> list[str]:
    """The links of documents to files that are not there."""
    broken = []
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text()):
            if "://" not in target and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(ROOT)}: broken link {target}")
    return broken


def code_of_lines(text: str) -> list[str]:
    """The lines of a file up to its tests, comments blank, so that numbers stay true."""
    lines = []
    for line in text.split("\n"):
        if line == "#[cfg(test)]":
            break
        lines.append("" if line.lstrip().startswith("//") else line)
    return lines


if __name__ == "__main__":
    sys.exit(main())

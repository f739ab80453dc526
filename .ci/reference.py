#!/usr/bin/env python3
"""Writes docs/reference/configuration.md from the programs' --help, and checks docs/reference/metrics.md against the code.

Usage: .ci/reference.py <folder of the built programs> [--check]

With --check nothing is written; a file that differs, and a metric that only the code or only the document has, are
faults.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("ingest", "processor", "api", "dispatcher")
CONFIGURATION = ROOT / "docs/reference/configuration.md"
METRICS = ROOT / "docs/reference/metrics.md"
INTRODUCTION = """# Configuration

Every variable of the four programs, as their `--help` describes them; `.ci/reference.py` writes this page. A program reads its variables
at the start, reports every fault at once, and exits with 64. A variable without a default is required, unless its
description says otherwise. A secret can also be read from a file that the variable with `_FILE` appended names.

"""
# Names that begin like a metric: a cookie, and a channel of Postgres.
NOT_METRICS = {"hopline_session", "hopline_device", "hopline_outbox"}
# A setting that no --help lists.
KAFKA_PROPERTIES = "`KAFKA_CONFIG_…` | all | | A property of the Kafka client: `KAFKA_CONFIG_SECURITY_PROTOCOL` sets `security.protocol`"


def options(program: Path) -> dict[str, tuple[str, str]]:
    """The variables of a program with their defaults and descriptions."""
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, env={}).stdout
    found = {}
    for block in re.split(r"\n(?=      --|  -\w, --)", help_text):
        block = re.split(r"\n\n(?=\S)", block)[0]
        variable = re.search(r"\[env: ([A-Z_]+)", block)
        if not variable:
            continue
        default = re.search(r"\[default: (.*)\]", block)
        lines = block.split("\n")[1:]
        text = " ".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("["))
        text = re.sub(r" ?Possible values: ?", " ", text).replace("|", "\\|").strip()
        value = default[1].strip('"') if default else ""
        found[variable[1]] = (f"`{value}`" if value else "empty" if default else "", text)
    return found


def configuration(folder: Path) -> str:
    merged: dict[str, tuple[list[str], str, str]] = {}
    for program in PROGRAMS:
        for variable, (default, text) in options(folder / program).items():
            programs, *_ = merged.setdefault(variable, ([], default, text))
            programs.append(program)
    rows = [f"| `{name}` | {'all' if len(programs) == len(PROGRAMS) else ', '.join(programs)} | {default} | {text} |"
            for name, (programs, default, text) in sorted(merged.items())]
    head = "| Variable | Programs | Default | Description |\n|---|---|---|---|\n"
    return INTRODUCTION + head + "\n".join(rows) + f"\n| {KAFKA_PROPERTIES} |\n"


def metrics_of_code() -> set[str]:
    names = set()
    for crate in (*PROGRAMS, "service"):
        for file in (ROOT / crate / "src").rglob("*.rs"):
            code = re.split(r"(?m)^#\[cfg\(test\)\]", file.read_text())[0]
            names |= set(re.findall(r'"(hopline_[a-z_]+)"', code))
    return names - NOT_METRICS


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    check = len(arguments) < len(sys.argv) - 1
    faults = []
    text = configuration(Path(arguments[0]))
    if not check:
        CONFIGURATION.write_text(text)
    elif CONFIGURATION.read_text() != text:
        faults.append(f"{CONFIGURATION.relative_to(ROOT)} is not what --help says: run .ci/reference.py {arguments[0]}")
    documented = set(re.findall(r"`(hopline_[a-z_]+)", METRICS.read_text()))
    code = metrics_of_code()
    faults += [f"docs/reference/metrics.md lacks {name}" for name in sorted(code - documented)]
    faults += [f"docs/reference/metrics.md has {name}, which no program exports" for name in sorted(documented - code)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

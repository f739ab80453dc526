#!/usr/bin/env python3
"""Writes docs/reference/configuration.md from the programs' --help, and docs/reference/metrics.md from the crates' tables.

Usage: .ci/reference.py <folder of the built programs> [--check]

With --check nothing is written, and a file that differs is a fault. A metric that the code records without a row in its
crate's table, as another kind, or not at all is a fault too.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("ingest", "processor", "api", "dispatcher")
CONFIGURATION = ROOT / "docs/reference/configuration.md"
METRICS = ROOT / "docs/reference/metrics.md"
CONFIGURATION_HEAD = """# Configuration

Every variable of the four programs, as their `--help` describes them; `.ci/reference.py` writes this page. A program reads its variables
at the start, reports every fault at once, and exits with 64. A variable without a default is required, unless its
description says otherwise. A secret can also be read from a file that the variable with `_FILE` appended names.

"""
METRICS_HEAD = """# Metrics

Each program serves its metrics at `/metrics` of its operations listener, for Prometheus; `.ci/reference.py` writes this page from the tables in the code.
Counters and histograms exist from the start with 0, for each value of a label that is listed here. A gauge exists while its value is known. Besides
these, each program exports the process metrics (`process_…`). [Alert rules and a dashboard](../guides/monitoring.md) are in `deploy/monitoring`.
"""
# The crates with a table of metrics, and the titles of their sections.
TABLES = {"service": "All programs", "ingest": "Edge", "processor": "Processor", "api": "API", "dispatcher": "Dispatcher"}
LABEL = r'\("(\w+)", &\[([^]]*)\]\)'
ROW = re.compile(rf'Metric::(counter|gauge|histogram)\("(\w+)", (?:[A-Z_]+, )?&\[((?:{LABEL}(?:, )?)*)\], "([^"\\]+)"\)')
# A setting that no --help lists.
KAFKA_PROPERTIES = "`KAFKA_CONFIG_…` | all | | A property of the Kafka client: `KAFKA_CONFIG_SECURITY_PROTOCOL` sets `security.protocol`. A password may be in a file: `KAFKA_CONFIG_SASL_PASSWORD_FILE`"


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
    return CONFIGURATION_HEAD + head + "\n".join(rows) + f"\n| {KAFKA_PROPERTIES} |\n"


def code_of(file: Path) -> str:
    return re.split(r"(?m)^#\[cfg\(test\)\]", file.read_text())[0]


def table(crate: str) -> list[tuple[str, str, str, str]]:
    """The rows of a crate's table: name, kind, labels with their values, meaning."""
    file = ROOT / crate / "src/metrics.rs"
    text = " ".join(re.search(r"(?ms)^pub const METRICS: .*?^\];", code_of(file))[0].split())
    # Without what rustfmt adds to wrapped lines.
    text = re.sub(r"([(\[]) ", r"\1", re.sub(r",? ?([)\]])", r"\1", text))
    rows = []
    for kind, name, labels, *_, meaning in ROW.findall(text):
        shown = [f"`{label}`" + (": " + values.replace('"', "") if values else "")
                 for label, values in re.findall(LABEL, labels)]
        rows.append((name, kind, "; ".join(shown), meaning))
    if len(rows) != text.count("Metric::"):
        raise SystemExit(f"{file.relative_to(ROOT)}: {text.count('Metric::')} metrics, of which {len(rows)} can be read")
    return rows


def metrics() -> str:
    text = METRICS_HEAD
    for crate, title in TABLES.items():
        text += f"\n## {title}\n\n| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n"
        text += "".join(f"| `{name}` | {kind} | {labels} | {meaning} |\n" for name, kind, labels, meaning in table(crate))
    return text


def recorded(crate: str) -> set[tuple[str, str]]:
    """The metrics that a crate's code records: name and kind."""
    code = "\n".join(code_of(file) for file in (ROOT / crate / "src").rglob("*.rs"))
    return {(name, kind) for kind, name in re.findall(r'\b(counter|gauge|histogram)!\(\s*"(\w+)"', code)}


def metrics_faults() -> list[str]:
    faults = []
    for crate in TABLES:
        code, rows = recorded(crate), {(name, kind) for name, kind, *_ in table(crate)}
        faults += [f"{crate}/src/metrics.rs lacks the {kind} {name}" for name, kind in sorted(code - rows)]
        faults += [f"{crate}/src/metrics.rs has the {kind} {name}, which nothing records" for name, kind in sorted(rows - code)]
    return faults


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    check = len(arguments) < len(sys.argv) - 1
    faults = metrics_faults()
    for file, text in ((CONFIGURATION, configuration(Path(arguments[0]))), (METRICS, metrics())):
        if not check:
            file.write_text(text)
        elif file.read_text() != text:
            faults.append(f"{file.relative_to(ROOT)} is not what the programs have: run .ci/reference.py {arguments[0]}")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Asserts that code, scrape, dashboards, rules, README and runbook speak of the same metrics, labels and alerts.

usage: names.py REPOSITORY METRICS.txt
"""
import json
import pathlib
import re
import sys

from prometheus import read_exceptions

root, metrics = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text()
here = root / "dashboards"
NAME = re.compile(r"\btower_lock_[a-z_]+[a-z]\b")
FREE = {"lock", "store", "version"}  # labels whose values belong to the user
problems = []


def same(what, found, expected):
    if missing := expected - found:
        problems.append(f"{what} lacks {sorted(missing)}")
    if extra := found - expected:
        problems.append(f"{what} has, but the product does not: {sorted(extra)}")


def plain(names):
    """A histogram's three series are one metric."""
    return {next((h for h in histograms if re.fullmatch(h + "_(bucket|sum|count)", name)), name) for name in names}


# What the product exposes: types, labels and their values.
kinds = dict(re.findall(r"^# TYPE (tower_lock_\w+) (\w+)$", metrics, re.M))
histograms = {name for name, kind in kinds.items() if kind == "histogram"} | {"tower_lock_queue_depth"}
scraped = {}
for name, text in re.findall(r"^(tower_lock_\w+)\{([^}]*)\}", metrics, re.M):
    labels = scraped.setdefault(plain({name}).pop(), {})
    for label, value in re.findall(r'(\w+)="([^"]*)"', text):
        if label != "le":
            labels.setdefault(label, set()).add(value)
exposed = set(scraped)
exceptions = read_exceptions(pathlib.Path(__file__).with_name("exceptions.txt"))
absent = {name for name, (word, _) in exceptions.items() if word == "absent"}
catalogue = exposed | absent
same("TYPE lines", set(kinds), exposed)
without_help = exposed - set(re.findall(r"^# HELP (tower_lock_\w+) \S", metrics, re.M))
if without_help:
    problems.append(f"no HELP: {sorted(without_help)}")

# Code.
code = "\n".join(path.read_text() for path in (root / "src/telemetry").rglob("*.rs"))
same("src/telemetry", set(re.findall(r'"(tower_lock_\w+)"', code)), exposed)

# README: a table of the whole catalogue, with type, labels and values.
rows = re.findall(r"^\| `(tower_lock_\w+)` \| (\w+) \| ([^|]*) \|", (here / "README.md").read_text(), re.M)
same("the table in dashboards/README.md", {name for name, _, _ in rows}, catalogue)
for name, kind, text in rows:
    if name in absent:
        continue
    if kind != kinds.get(name):
        problems.append(f"dashboards/README.md calls {name} a {kind}, it is a {kinds.get(name)}")
    labels = {label: set(filter(None, re.split(r",\s*", values)))
              for label, values in re.findall(r"`(\w+)`(?:: ([^;]*))?", text)}
    found = {label: set() if label in FREE else values for label, values in scraped.get(name, {}).items()}
    if labels != found:
        problems.append(f"dashboards/README.md gives {name} {labels}, it has {found}")
front = re.findall(r"^\| `(tower_lock_\w+)` \| (\w+) \|", (root / "README.md").read_text(), re.M)
same("the table in README.md", {name for name, _ in front}, exposed)
problems += [f"README.md calls {name} a {kind}" for name, kind in front if kind != kinds.get(name)]
for path in (root / "README.md", here / "RUNBOOK.md"):
    # A name with a star, as in tower_lock_store_*, stands for several.
    mentioned = plain(set(NAME.findall(re.sub(r"tower_lock_\w*\*", "", path.read_text()))))
    if extra := mentioned - catalogue:
        problems.append(f"{path.relative_to(root)} names what the product does not expose: {sorted(extra)}")

# Dashboards: every metric has a panel.
queries = "\n".join(target["expr"] for path in here.glob("tower-lock-*.json")
                    for panel in json.loads(path.read_text())["panels"] for target in panel.get("targets", []))
same("the set of panels", plain(set(re.findall(r"(tower_lock_\w+)\{", queries))), catalogue)

# Rules, alerts, runbook.
rule_texts = {path.name: path.read_text() for path in here.glob("tower-lock.*.yml") if "test" not in path.name}
recorded = set(re.findall(r"record: (\S+)", "\n".join(rule_texts.values())))
alerts = set(re.findall(r"alert: (\S+)", "\n".join(rule_texts.values())))
for file, text in rule_texts.items():
    used = set(re.findall(r"(?<![:\w])tower_lock_\w+", text))
    if extra := plain(used) - catalogue:
        problems.append(f"{file} reads what the product does not expose: {sorted(extra)}")
    if unknown := set(re.findall(r"job_lock:\S+?(?=[ )\n{])", text)) - recorded:
        problems.append(f"{file} reads what nothing records: {sorted(unknown)}")
for file, text in [*rule_texts.items(), ("the panels", queries)]:
    for name, matchers in re.findall(r"(tower_lock_\w+)\{([^{}]*)\}", text):
        known = scraped.get(plain({name}).pop(), {})
        for label, operator, value in re.findall(r'(\w+)(=~|!=|=)"([^"$]+)"', matchers):
            values = set(value.split("|")) if operator == "=~" else {value}
            if label != "le" and label in known and not values <= known[label]:
                problems.append(f"{file}: {name} never has {label} {sorted(values - known[label])}")
            elif label not in known and label not in ("le", "job", "instance"):
                problems.append(f"{file}: {name} has no label {label}")
same("RUNBOOK.md", set(re.findall(r"^## (TowerLock\w+)$", (here / "RUNBOOK.md").read_text(), re.M)), alerts)
same("the table of alerts in README.md",
     set(re.findall(r"^\| `(TowerLock\w+)` ", (here / "README.md").read_text(), re.M)), alerts)
for test in ("tower-lock.test.yml", "tower-lock.slow.test.yml"):
    tested = {a for a in alerts if re.search(rf"alertname: {a}\n +exp_alerts", (here / test).read_text())}
    silent = {a for a in alerts if re.search(rf"alertname: {a}(\}}|\n(?! +exp_alerts))", (here / test).read_text())}
    if test == "tower-lock.test.yml":
        same("tower-lock.test.yml, cases that fire,", tested, alerts)
        same("tower-lock.test.yml, cases that stay silent,", silent, alerts)

# Conventions of the alerts.
for file, text in rule_texts.items():
    for group in re.split(r"\n  - name: ", text)[1:]:
        rules = re.split(r"\n      - (?=alert|record)", group)[1:]
        if len(rules) > 20:
            problems.append(f"{file}: more than 20 rules in {group.splitlines()[0]}")
        for rule in (r for r in rules if r.startswith("alert")):
            name = rule.split()[1]
            expr = re.search(r"expr: \|\n((?: {10}.*\n)+)", rule)[1]
            labels = re.search(r"labels:\n((?: {10}.*\n)+)", rule)[1]
            for complaint, bad in (
                ("name", not re.fullmatch(r"([A-Z][a-z0-9]+)+", name) or len(name) > 40),
                ("severity", not re.search(r"severity: (critical|warning|info)\n", labels)),
                ("$value in a label", "$" in labels),
                ("summary", not re.search(r"summary: [A-Z][^{}]*\.\n", rule)),
                ("description", "$labels" not in rule.split("description:")[1]),
                ("runbook_url", f"RUNBOOK.md#{name.lower()}\n" not in rule + "\n"),
                ("no comparison", not re.search(r"[<>=]=? [\d(]|> on|unless", expr)),
                ("regex without a pattern", re.search(r'[=!]~"\w+"', expr)),
            ):
                if bad:
                    problems.append(f"{file}: {name}: {complaint}")

print("\n".join(problems))
print(f"{len(exposed)} metrics, {len(alerts)} alerts, {len(recorded)} recording rules, {len(problems)} problems")
sys.exit(bool(problems))

#!/usr/bin/env python3
"""Negative control for lint.py, typecheck.mjs and panels.py: one of them must report each deliberate defect.

usage: mutate_dashboards.py PROMETHEUS_URL METRICS.txt PHASES.json OVERVIEW.json
"""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

url, metrics, phases, overview = sys.argv[1:]
HERE = pathlib.Path(__file__).parent
base = json.load(open(overview))


def panel(board, title):
    return next(p for p in board["panels"] if p["title"] == title)


def expr(title, old, new):
    def mutate(board):
        target = panel(board, title)["targets"][0]
        assert old in target["expr"], (title, old)
        target["expr"] = target["expr"].replace(old, new)
    return mutate


def at(title, *path, **change):
    def mutate(board):
        part = panel(board, title)
        for key in path:
            part = part[key]
        part.update(change)
    return mutate


MUTATIONS = {
    "no description": lambda b: panel(b, "Acquire p99").pop("description"),
    "unit with a typo": at("Acquire p99", "fieldConfig", "defaults", unit="sec"),
    "no unit": lambda b: panel(b, "Acquire p99")["fieldConfig"]["defaults"].pop("unit"),
    "fixed data source": at("Store errors", datasource={"type": "prometheus", "uid": "PBFA97CFB590B2093"}),
    "broken query": expr("Store errors", "))", ")"),
    "unknown metric": expr("Store errors", "store_errors", "store_erors"),
    "unknown label": expr("Locks lost", 'job=~"$job"', 'job=~"$job",foo="bar"'),
    "fixed rate window": expr("Store errors", "$__rate_interval", "5m"),
    "raw counter": expr("Store errors", "[$__rate_interval]", ""),
    "no job": expr("Store errors", 'job=~"$job",', ""),
    "overlap": at("Store errors", "gridPos", x=0),
    "id twice": at("Store errors", id=base["panels"][1]["id"]),
    "typo in an option": at("Store errors", "options", "legend", placment="bottom"),
    "wrong enum": at("Store errors", "options", "tooltip", mode="all"),
    "wrong custom field": at("Store errors", "fieldConfig", "defaults", "custom", drawStyle="lines"),
    "threshold as text": lambda b: panel(b, "Acquire p99")["fieldConfig"]["defaults"]["thresholds"]["steps"][1]
        .update(value="0.25"),
    "__inputs": lambda b: b.update(__inputs=[{"name": "DS_PROMETHEUS"}]),
    "editable": lambda b: b.update(editable=True),
    "variable is not refreshed": lambda b: b["templating"]["list"][1].update(refresh=1),
    "no job variable": lambda b: b["templating"]["list"].pop(1),
    "missing __requires": lambda b: b.update(__requires=b["__requires"][:2]),
    "wrong outcome": expr("Turned away", "contended", "contented"),
    "quantile without le": expr("Acquire p99", "by (le)", "by (lock)"),
}

survivors = []
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "mutant.json"
    checks = (
        [sys.executable, HERE / "lint.py", url, metrics, file],
        [sys.executable, HERE / "panels.py", "loaded", url, "orders", phases, "/dev/null", file],
        ["node", HERE / "typecheck.mjs", file],
    )
    for name, mutate in MUTATIONS.items():
        board = copy.deepcopy(base)
        mutate(board)
        file.write_text(json.dumps(board))
        if all(subprocess.run(check, capture_output=True).returncode == 0 for check in checks):
            survivors.append(name)
print("\n".join(f"SURVIVED {name}" for name in survivors))
print(f"{len(MUTATIONS) - len(survivors)} of {len(MUTATIONS)} dashboard mutations caught")
sys.exit(bool(survivors))

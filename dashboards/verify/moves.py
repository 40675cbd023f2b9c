#!/usr/bin/env python3
"""Asserts that every series of the product has moved in the run, save those that exceptions.txt names.

usage: moves.py PROMETHEUS_URL PHASES.json
The same series on two instances counts as one; a histogram counts by its `_count`. An entry `later` fails as
soon as its series move, one `absent` as soon as they exist, so that the list shrinks.
"""
import json
import pathlib
import re
import sys

from prometheus import Prometheus, read_exceptions

prometheus, phases = Prometheus(sys.argv[1]), json.load(open(sys.argv[2]))
exceptions = read_exceptions(pathlib.Path(__file__).with_name("exceptions.txt"))
selector = '{__name__=~"tower_lock_.+",__name__!~".+_(bucket|sum)",job="orders"}'
answer = prometheus.get("/api/v1/query_range", query=selector, start=phases["warm-up"], end=phases["over"] + 10,
                        step=1)
moved = {}
for one in answer["data"]["result"]:
    labels = {k: v for k, v in one["metric"].items() if k not in ("__name__", "job", "instance")}
    name = one["metric"]["__name__"].removesuffix("_count")
    text = f"{name}{{{','.join(f'{k}={v!r}' for k, v in sorted(labels.items()))}}}"
    moves = any(float(value) != 0 for _, value in one["values"])
    before = moved.get(text, (None, None, False))[2]
    moved[text] = (name, labels, moves or before)


def matches(entry, name, labels):
    wanted_name, _, matchers = entry.rstrip("}").partition("{")
    return name == wanted_name and all(
        re.fullmatch(values, labels.get(label, "")) for label, values in re.findall(r'(\w+)="([^"]*)"', matchers))


problems = []
for text, (name, labels, moves) in sorted(moved.items()):
    entries = [entry for entry in exceptions if matches(entry, name, labels)]
    if not moves and not entries:
        problems.append(f"{text} has not moved")
    if moves and any(exceptions[entry][0] == "later" for entry in entries):
        problems.append(f"{text} moves by now: take it off exceptions.txt")
for entry, (word, _) in exceptions.items():
    exists = any(matches(entry, name, labels) for name, labels, _ in moved.values())
    if exists == (word == "absent"):
        problems.append(f"exceptions.txt says {entry} is {word}, but it is {'there' if exists else 'not scraped'}")
print("\n".join(problems))
print(f"{sum(m for _, _, m in moved.values())} of {len(moved)} series moved, {len(problems)} problems")
sys.exit(bool(problems))

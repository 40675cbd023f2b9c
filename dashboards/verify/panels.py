#!/usr/bin/env python3
"""Runs every panel query as Grafana would, against a Prometheus that has scraped the product.

usage: panels.py loaded|quiet PROMETHEUS_URL JOB PHASES.json FRAMES_OUT DASHBOARD.json...
loaded: each query has to answer with at least one number, unless exceptions.txt names its metric.
quiet: each query has to answer, and no stat or bar gauge may show NaN.
The answers are written to FRAMES_OUT, which the pictures are drawn from.
"""
import json
import math
import pathlib
import re
import sys

from prometheus import Prometheus, panels, read_exceptions

mode, url, job, phases, out, *files = sys.argv[1:]
phases = json.load(open(phases))
prometheus = Prometheus(url)
still = read_exceptions(pathlib.Path(__file__).with_name("exceptions.txt"))
start, end = phases["warm-up"], phases["over"]
seconds = round(end - start)
step = max(1, seconds // 240)
values = {
    "__rate_interval": f"{max(step + 1, 4)}s", "__interval": f"{step}s", "__range": f"{seconds}s",
    "job": job, "instance": ".+", "lock": ".+",
}


def fill_in(text, values):
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], text)


def run(target):
    expr = fill_in(target["expr"], values)
    if target.get("instant"):
        return prometheus.get("/api/v1/query", query=expr, time=end)
    return prometheus.get("/api/v1/query_range", query=expr, start=start, end=end, step=step)


problems, count, frames = [], 0, []
for file in files:
    board = json.load(open(file))
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        selector, label = re.fullmatch(r"label_values\((.+), *(\w+)\)", variable["query"]["query"]).groups()
        answer = prometheus.get(f"/api/v1/label/{label}/values",
                                **{"match[]": fill_in(selector, values), "start": start, "end": end})
        if not answer.get("data"):
            problems.append(f"{board['uid']}: variable {variable['name']} has no values")
        elif not variable["multi"]:
            values[variable["name"]] = answer["data"][0]
    for panel in panels(board):
        for target in panel["targets"]:
            count += 1
            where = f"{board['uid']} '{panel['title']}' {target['refId']}"
            answer = run(target)
            if answer["status"] != "success":
                problems.append(f"{where}: {answer['error']}")
                continue
            result = answer["data"]["result"]
            numbers = [float(v) for series in result for _, v in series.get("values") or [series["value"]]]
            frames.append({"dashboard": board["uid"], "panel": panel["id"], "refId": target["refId"],
                           "legend": target["legendFormat"], "result": result})
            if mode == "quiet":
                if panel["type"] in ("stat", "bargauge") and any(map(math.isnan, numbers)):
                    problems.append(f"{where}: NaN without traffic")
            elif not any(map(math.isfinite, numbers)):
                names = set(re.findall(r"tower_lock_\w+?(?=(?:_bucket|_sum|_count)?\{)", target["expr"]))
                if not names & still.keys():
                    problems.append(f"{where}: empty")

json.dump({"start": start, "end": end, "step": step, "frames": frames}, open(out, "w"))
print("\n".join(problems))
print(f"{count} queries, {len(problems)} problems")
sys.exit(bool(problems))

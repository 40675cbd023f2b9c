#!/usr/bin/env python3
"""The rules of grafana/dashboard-linter re-stated, and what else an import or a reader would trip over.

usage: lint.py PROMETHEUS_URL METRICS.txt DASHBOARD.json...
METRICS.txt is a scrape of the product; the Prometheus parses the queries.
"""
import json
import pathlib
import re
import sys
import urllib.error
import urllib.parse
import urllib.request

from prometheus import panels, read_exceptions

url, metrics, *files = sys.argv[1:]
UNITS = {"none", "short", "percentunit", "s", "ops", "reqps", "bool_on_off"}
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^{}]*)\}")
EXCEPTIONS = read_exceptions(pathlib.Path(__file__).with_name("exceptions.txt"))
ABSENT = {name for name, (word, _) in EXCEPTIONS.items() if word == "absent"}
TYPES = dict(re.findall(r"^# TYPE (\S+) (\S+)$", open(metrics).read(), re.M))
KNOWN = {name + suffix for name, kind in TYPES.items()
         for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))}
problems = []


def syntax_error(expr):
    for variable, value in (("$__rate_interval", "29m"), ("$__range", "31m"), ("$__interval", "37m")):
        expr = expr.replace(variable, value)
    data = urllib.parse.urlencode({"query": expr}).encode()
    try:
        urllib.request.urlopen(f"{url}/api/v1/format_query", data=data).close()
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]


def check_settings(board, say):
    for key in ("uid", "title", "description", "tags", "schemaVersion", "time", "refresh"):
        if not board.get(key):
            say(f"no {key}")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board.get("uid", "")):
        say("uid that Grafana refuses")
    if board.get("id", 0) is not None:
        say("id has to be null")
    if "__inputs" in board:
        say("__inputs stay unresolved when the file is provisioned")
    if board.get("editable") is not False:
        say("editable")
    required = {(r["type"], r["id"]) for r in board.get("__requires", [])}
    needed = {("grafana", "grafana"), ("datasource", "prometheus")} | {("panel", p["type"]) for p in panels(board)}
    if required != needed:
        say(f"__requires differs: {required ^ needed}")


def check_variables(board, say):
    variables = {v["name"]: v for v in board["templating"]["list"]}
    sources = [v for v in variables.values() if v["type"] == "datasource"]
    if [(v["name"], v["label"], v["query"]) for v in sources] != [("datasource", "Data source", "prometheus")]:
        say("template-datasource-rule")
    for name in ("job", "instance"):
        v = variables.get(name)
        if not v or v["type"] != "query" or v["label"] != name.title() or not v["multi"] or v.get("allValue") != ".+":
            say(f"template-{name}-rule")
    for v in variables.values():
        if v["type"] == "query":
            if v["refresh"] != 2:
                say(f"template-on-time-change-reload-rule: {v['name']}")
            if v["datasource"]["uid"] != "${datasource}":
                say(f"variable {v['name']} has a fixed data source")
            if not re.fullmatch(r"label_values\(.+, \w+\)", v["query"]["query"]):
                say(f"template-label-promql-rule: {v['name']}")
    return variables


def check_layout(board, say):
    everything = board["panels"]
    if len({p["id"] for p in everything}) != len(everything):
        say("panel id used twice")
    titles = [p["title"] for p in panels(board)]
    if len(set(titles)) != len(titles):
        say("panel title used twice")
    for i, p in enumerate(everything):
        a = p["gridPos"]
        if a["x"] + a["w"] > 24:
            say(f"'{p['title']}' is wider than the grid")
        if p["type"] == "stat" and a["w"] <= 3 and len(p["title"]) > 14:
            say(f"title '{p['title']}' would be cut")
        for q in everything[:i]:
            b = q["gridPos"]
            if (a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"]
                    and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]):
                say(f"'{p['title']}' overlaps '{q['title']}'")


def check_panel(panel, variables, say):
    if not panel.get("title") or not panel.get("description"):
        say("panel-title-description-rule")
    if (panel.get("datasource") or {}).get("uid") != "${datasource}":
        say("panel-datasource-rule")
    if not panel.get("targets"):
        say("panel-no-targets-rule")
    unit = panel["fieldConfig"]["defaults"].get("unit") or panel["options"].get("yAxis", {}).get("unit")
    if unit not in UNITS:
        say(f"panel-units-rule: {unit}")
    if len({t["refId"] for t in panel["targets"]}) != len(panel["targets"]):
        say("refId used twice")
    for target in panel["targets"]:
        check_target(panel, target, variables, say)


def check_target(panel, target, variables, say):
    expr = target["expr"]
    if (target.get("datasource") or {}).get("uid") != "${datasource}":
        say("target has a fixed data source")
    if error := syntax_error(expr):
        return say(f"target-promql-rule: {error}: {expr}")
    selectors = SELECTOR.findall(expr)
    if not selectors:
        say(f"no selector in {expr}")
    for name, matchers in selectors:
        for label in ("job", "instance"):
            if f'{label}=~"${label}"' not in matchers:
                say(f"target-{label}-rule: {name}")
        if name not in KNOWN and re.sub("_bucket$", "", name) not in ABSENT:
            say(f"{name} is not scraped")
        for variable in re.findall(r"\$\{?(\w+)", matchers):
            if variable not in variables:
                say(f"unknown variable ${variable}")
    for window in re.findall(r"\brate\([^\[\]]*\[([^\]]+)\]", re.sub(r'"[^"]*"', '""', expr)):
        # A burn rate is defined by its own windows.
        if window != "$__rate_interval" and not panel["title"].startswith("Error budget"):
            say(f"target-rate-interval-rule: {window}")
    for name in re.findall(r"(\w+_total)\{[^{}]*\}(?!\[)", expr):
        say(f"target-counter-agg-rule: {name}")
    if "histogram_quantile" in expr and "by (le" not in expr:
        say("quantile without le")
    if panel["type"] in ("timeseries", "bargauge") and not target.get("legendFormat"):
        say("no legend")


uids = set()
for file in files:
    board = json.load(open(file))
    say = lambda text: problems.append(f"{board.get('uid')}: {text}")
    check_settings(board, say)
    variables = check_variables(board, say)
    check_layout(board, say)
    for panel in panels(board):
        check_panel(panel, variables, lambda text: say(f"'{panel.get('title')}': {text}"))
    if board.get("uid") in uids:
        say("uid used twice")
    uids.add(board.get("uid"))
print("\n".join(problems))
print(f"{len(files)} dashboards, {len(problems)} problems")
sys.exit(bool(problems))

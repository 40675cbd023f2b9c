#!/usr/bin/env python3
"""Writes tower-lock-overview.json and tower-lock-detail.json next to this file.

Dashboards are edited here, not in the JSON: one colour per outcome, one selector and one way to divide
then hold for all panels. `generate.py --check` fails when the JSON is not what this file writes.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
INSTANCE = 'job=~"$job",instance=~"$instance"'
LOCK = INSTANCE + ',lock=~"$lock"'
WINDOW = "[$__rate_interval]"
RANGE = "[$__range]"

COLORS = {
    # acquisitions
    "acquired": "green", "contended": "orange", "queue_full": "yellow", "error": "red", "cancelled": "purple",
    # responses
    "409": "orange", "503": "red", "400": "purple", "500": "dark-red",
    # renewals, releases, clean-ups
    "renewed": "green", "not_owned": "orange", "late": "yellow", "skipped": "blue", "removed": "green",
    # losses
    "expired": "red", "deleted": "orange", "taken_over": "dark-red", "unconfirmed": "purple", "max_hold": "blue",
    # bypasses
    "fail_open": "red", "no_key": "blue", "disabled": "text",
    # wake-ups
    "push": "green", "ttl": "yellow", "poll": "orange", "local": "blue",
    # gauges
    "waiting": "orange", "held": "blue",
}
LIMIT_LINE = [
    {"id": "custom.lineStyle", "value": {"dash": [10, 10], "fill": "dash"}},
    {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
]


# ---- PromQL ---------------------------------------------------------------------------------------------

def metric(name, selector=LOCK, more=""):
    return f"tower_lock_{name}{{{selector}{',' + more if more else ''}}}"


def rate(name, by="", more="", selector=LOCK):
    return f"sum {f'by ({by}) ' if by else ''}(rate({metric(name, selector, more)}{WINDOW}))"


def increase(name, by="", more="", selector=LOCK, window=RANGE):
    return f"sum {f'by ({by}) ' if by else ''}(increase({metric(name, selector, more)}{window}))"


def ratio(part, whole):
    """The guard turns the NaN of a quiet lock into an empty result."""
    return f"{part} / ({whole} > 0)"


def quantile(q, name, by="", more="", selector=LOCK):
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(name + '_bucket', labels, more, selector)}) >= 0"


def mean(name):
    return ratio(rate(name + "_sum"), rate(name + "_count"))


def outcome(value):
    return f'outcome="{value}"'


# ---- panels ---------------------------------------------------------------------------------------------

def steps(*pairs):
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in pairs]}


def targets(queries, **options):
    return [
        {"datasource": PROMETHEUS, "editorMode": "code", "expr": expr, "legendFormat": legend,
         "refId": chr(ord("A") + i), **({"range": True} | options)}
        for i, (expr, legend) in enumerate(queries)
    ]


INSTANT = {"instant": True, "range": False}


def panel(kind, title, description, queries, defaults, options, overrides=(), **extra):
    return {
        "type": kind, "title": title, "description": description, "datasource": PROMETHEUS,
        "targets": queries, "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options, **extra,
    }


def stat(title, description, expr, unit, thresholds, decimals=None, instant=False):
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": steps(*thresholds), "noValue": "–"}
    if decimals is not None:
        defaults["decimals"] = decimals
    return panel("stat", title, description, targets([(expr, "")], **(INSTANT if instant else {})), defaults, {
        "colorMode": "value", "graphMode": "none" if instant else "area", "justifyMode": "auto",
        "orientation": "auto", "textMode": "auto", "wideLayout": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    })


def lines(title, description, queries, unit, stack=False, bars=False, step=False, fill=0, top=None,
          thresholds=(("green", None),), threshold_style="off", limit=None, links=(), legend="table", total=None):
    """A time series. `limit` and `total` name the series that are drawn as a red dashed and a plain line. A table
    as legend shows three rows at height 9, so panels with more series take a list."""
    defaults = {
        "unit": unit, "min": 0, "color": {"mode": "palette-classic"}, "thresholds": steps(*thresholds),
        "links": list(links),
        "custom": {
            "axisBorderShow": False, "axisCenteredZero": False, "axisColorMode": "text", "axisLabel": "",
            "axisPlacement": "auto", "barAlignment": 0, "drawStyle": "bars" if bars else "line",
            "fillOpacity": 60 if bars else 30 if stack else fill, "gradientMode": "none",
            "hideFrom": {"legend": False, "tooltip": False, "viz": False}, "insertNulls": False,
            "lineInterpolation": "stepAfter" if step else "linear", "lineWidth": 1, "pointSize": 5,
            "scaleDistribution": {"type": "linear"}, "showPoints": "auto", "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if stack else "none"},
            "thresholdsStyle": {"mode": threshold_style},
        },
    }
    if top is not None:
        defaults["max"] = top
    overrides = []
    # A value of a label has the same colour on every panel.
    for expr, legend_format in queries:
        if legend_format in ("{{outcome}}", "{{status}}", "{{reason}}", "{{cause}}"):
            metric_name = next(name for name in LABEL_VALUES if name in expr)
            overrides += [color_of(value) for value in LABEL_VALUES[metric_name]]
        elif legend_format in COLORS:
            overrides.append(color_of(legend_format))
    if limit:
        overrides.append({"matcher": {"id": "byName", "options": limit}, "properties": LIMIT_LINE})
    if total:
        overrides.append({"matcher": {"id": "byName", "options": total}, "properties": [
            {"id": "color", "value": {"mode": "fixed", "fixedColor": "text"}},
            {"id": "custom.stacking", "value": {"group": "B", "mode": "none"}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.drawStyle", "value": "line"},
        ]})
    return panel("timeseries", title, description, targets(queries), defaults, {
        "legend": {"calcs": ["mean", "max"] if legend == "table" else [], "displayMode": legend,
                   "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }, overrides)


LABEL_VALUES = {
    "acquisitions_total": ["acquired", "contended", "queue_full", "error", "cancelled"],
    "acquire_duration_seconds": ["acquired", "contended", "queue_full", "error", "cancelled"],
    "rejections_total": ["409", "503", "400", "500"],
    "renewals_total": ["renewed", "not_owned", "error"],
    "releases_total": ["late", "not_owned", "error", "skipped"],
    "cleanups_total": ["removed", "not_owned", "error"],
    "lost_total": ["expired", "deleted", "taken_over", "unconfirmed", "max_hold"],
    "bypassed_total": ["fail_open", "no_key", "disabled"],
    "wakeups_total": ["push", "ttl", "poll", "local"],
}


def color_of(name):
    return {"matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": COLORS[name]}}]}


def heatmap(title, description, expr, unit):
    hide = {"legend": False, "tooltip": False, "viz": False}
    return panel("heatmap", title, description, targets([(expr, "{{le}}")], format="heatmap"),
                 {"custom": {"hideFrom": hide, "scaleDistribution": {"type": "linear"}}}, {
        "calculate": False, "cellGap": 1,
        "color": {"exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "reverse": False,
                  "scale": "exponential", "scheme": "Oranges", "steps": 64},
        "exemplars": {"color": "rgba(255,0,255,0.7)"}, "filterValues": {"le": 1e-9},
        "legend": {"show": True}, "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    })


def bar_gauge(title, description, expr, legend, unit, thresholds, links):
    return panel("bargauge", title, description, targets([(expr, legend)], **INSTANT), {
        "unit": unit, "min": 0, "max": 1, "decimals": 1, "color": {"mode": "thresholds"},
        "thresholds": steps(*thresholds), "links": list(links), "noValue": "–",
    }, {
        "displayMode": "basic", "maxVizHeight": 300, "minVizHeight": 16, "minVizWidth": 8,
        "namePlacement": "auto", "orientation": "horizontal", "showUnfilled": True, "sizing": "auto",
        "valueMode": "color",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    })


def table(title, description, expr, unit, hidden, renamed):
    return panel("table", title, description, targets([(expr, "")], format="table", **INSTANT), {
        "unit": unit, "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        "thresholds": steps(("green", None)),
    }, {"cellHeight": "sm", "showHeader": True}, transformations=[
        {"id": "organize", "options": {"excludeByName": {name: True for name in hidden}, "indexByName": {},
                                       "renameByName": renamed}},
    ])


# ---- dashboards -----------------------------------------------------------------------------------------

PANEL_NAMES = {"timeseries": "Time series", "stat": "Stat", "heatmap": "Heatmap", "bargauge": "Bar gauge",
               "table": "Table"}


class Grid:
    """Lays panels out in rows and numbers them."""

    def __init__(self):
        self.panels, self.y = [], 0

    def put(self, contents, x, width, height):
        self.panels.append({"id": len(self.panels) + 1} | contents
                           | {"gridPos": {"h": height, "w": width, "x": x, "y": self.y}})

    def row(self, title):
        self.put({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, 24, 1)
        self.y += 1

    def line(self, height, *panels):
        x = 0
        for width, contents in panels:
            self.put(contents, x, width, height)
            x += width
        assert x == 24, f"a line is {x} wide"
        self.y += height


def query_variable(name, query, multi=True):
    variable = {
        "name": name, "label": name.title(), "type": "query", "datasource": PROMETHEUS, "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2, "regex": "", "sort": 1, "hide": 0, "multi": multi, "includeAll": multi, "options": [],
        "skipUrlSync": False,
    }
    if multi:
        variable |= {"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
    return variable


def dashboard(uid, title, description, grid, one_lock):
    kinds = sorted({p["type"] for p in grid.panels} - {"row"})
    return {
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.4.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
            *({"type": "panel", "id": kind, "name": PANEL_NAMES[kind], "version": ""} for kind in kinds),
        ],
        "id": None, "uid": uid, "title": title, "description": description, "tags": ["tower-lock"],
        "editable": False, "graphTooltip": 1, "fiscalYearStartMonth": 0, "liveNow": False, "schemaVersion": 39,
        "version": 1, "weekStart": "", "timezone": "", "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"}, "timepicker": {},
        "annotations": {"list": [
            {"builtIn": 1, "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "enable": True,
             "hide": True, "iconColor": "rgba(0, 211, 255, 1)", "name": "Annotations & Alerts",
             "type": "dashboard"},
            {"name": "Firing lock alerts", "datasource": PROMETHEUS, "enable": True, "iconColor": "red",
             "expr": 'ALERTS{job=~"$job|",alertname=~"TowerLock.+",alertstate="firing"}', "step": "30s",
             "titleFormat": "{{alertname}}", "textFormat": "{{lock}} {{reason}}", "tagKeys": "severity"},
            {"name": "Lock lost", "datasource": PROMETHEUS, "enable": True, "iconColor": "dark-red",
             "expr": increase("lost_total", "lock, reason", window="[2m]") + " > 0", "step": "60s",
             "titleFormat": "Lock lost", "textFormat": "{{lock}}: {{reason}}", "tagKeys": "lock,reason"},
        ]},
        "links": [{"title": "Request locks", "type": "dashboards", "tags": ["tower-lock"],
                   "asDropdown": False, "icon": "external link", "includeVars": True, "keepTime": True,
                   "targetBlank": False, "tooltip": "", "url": ""}],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
             "refresh": 1, "regex": "", "hide": 0, "includeAll": False, "multi": False, "options": [],
             "skipUrlSync": False},
            query_variable("job", "label_values(tower_lock_build_info, job)"),
            query_variable("instance", 'label_values(tower_lock_build_info{job=~"$job"}, instance)'),
            query_variable("lock", f"label_values({metric('acquisitions_total', INSTANCE)}, lock)",
                           multi=not one_lock),
        ]},
        "panels": grid.panels,
    }


# ---- panels that both dashboards have -------------------------------------------------------------------

CONTENTION_STEPS = [("green", None), ("yellow", 0.1), ("red", 0.3)]
DETAIL_LINK = [{
    "title": "Open this lock", "targetBlank": False,
    "url": "/d/tower-lock-detail?${__url_time_range}&${datasource:queryparam}&${job:queryparam}"
           "&${instance:queryparam}&var-lock=${__field.labels.lock}",
}]


def contention_ratio(by=""):
    return ratio(rate("contention_total", by), rate("acquisitions_total", by))


def share_of_acquisitions(value):
    return ratio(rate("acquisitions_total", more=outcome(value)), rate("acquisitions_total"))


def overview():
    grid = Grid()
    grid.row("At a glance")
    grid.line(
        4,
        (3, stat("Acquisitions", "Finished lock acquisitions per second, whatever their outcome.",
                 rate("acquisitions_total"), "reqps", [("text", None)])),
        (3, stat("Contention", "Share of acquisitions whose first attempt found the lock taken. They may still "
                 "have got it later.", contention_ratio(), "percentunit", CONTENTION_STEPS, 1)),
        (3, stat("Turned away", "Share of acquisitions that ended with the wait used up. The caller got a 409.",
                 share_of_acquisitions("contended"), "percentunit",
                 [("green", None), ("yellow", 0.05), ("red", 0.2)], 1)),
        (3, stat("Acquire p99", "99th percentile of the time to get a lock, successful acquisitions only.",
                 quantile("0.99", "acquire_duration_seconds", more=outcome("acquired")), "s",
                 [("green", None), ("yellow", 0.25), ("red", 1)])),
        (3, stat("Store failures", "Share of acquisitions that the lock store could not decide.",
                 share_of_acquisitions("error"), "percentunit",
                 [("green", None), ("yellow", 0.001), ("red", 0.01)], 2)),
        (3, stat("Locks lost", "Locks lost while their handler ran, over the selected time range. Any value "
                 "above zero means that two handlers may have run at once.", increase("lost_total"), "short",
                 [("green", None), ("red", 0.5)], 0, instant=True)),
        (3, stat("Bad releases", "Releases that failed, came late or found a stranger's lock, over the selected "
                 "time range.", increase("releases_total", more='outcome=~"error|late|not_owned"'), "short",
                 [("green", None), ("yellow", 0.5), ("red", 10)], 0, instant=True)),
        (3, stat("Unprotected", "Requests that ran without a lock because the store failed and the layer "
                 "proceeds then, over the selected time range.",
                 increase("bypassed_total", more='reason="fail_open"'), "short",
                 [("green", None), ("red", 0.5)], 0, instant=True)),
    )
    grid.row("Traffic and outcomes")
    grid.line(
        9,
        (8, lines("Acquisitions by outcome", "Finished acquisitions per second. acquired: the handler ran; "
                  "contended: the wait was used up; queue_full: too many local waiters; error: the store could "
                  "not decide; cancelled: the client went away while waiting.",
                  [(rate("acquisitions_total", "outcome"), "{{outcome}}")], "reqps", stack=True, legend="list")),
        (8, lines("Layer responses by status", "Responses made by the layer instead of the handler, per second. "
                  "409: contended or queue full; 503: store unusable; 400: no key; 500: lock lost.",
                  [(rate("rejections_total", "status"), "{{status}}")], "reqps", stack=True, legend="list")),
        (8, lines("Waiting and held", "Acquisitions under way and locks held right now.",
                  [(f"sum ({metric('waiting')})", "waiting"), (f"sum ({metric('held')})", "held")], "short",
                  fill=10)),
    )
    grid.row("Acquisition latency")
    grid.line(
        9,
        (8, lines("Acquire latency", "Percentiles of the time to get a lock, successful acquisitions only. "
                  "Dashed: the smallest configured wait.",
                  [(quantile(q, "acquire_duration_seconds", more=outcome("acquired")), name)
                   for q, name in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))]
                  + [(f"min ({metric('acquire_timeout_seconds')})", "wait limit")], "s", limit="wait limit")),
        (8, heatmap("Acquire latency distribution", "Acquisitions per latency bucket, all outcomes.",
                    increase("acquire_duration_seconds_bucket", "le", window=WINDOW), "s")),
        (8, lines("Attempts per acquisition", "Store attempts that one acquisition used. A mean near 1: the "
                  "lock is mostly free, or its turns are handed over locally.",
                  [(mean("acquire_attempts"), "mean"), (quantile("0.95", "acquire_attempts"), "p95")], "short")),
    )
    grid.row("Contention by lock")
    grid.line(
        8,
        (8, bar_gauge("Most contended locks", "The ten locks with the highest share of acquisitions that found "
                      "them taken. A click opens the lock.", f"topk(10, {contention_ratio('lock')})", "{{lock}}",
                      "percentunit", CONTENTION_STEPS, DETAIL_LINK)),
        (8, lines("Contention by lock", "Share of acquisitions whose first attempt found the lock taken.",
                  [(contention_ratio("lock"), "{{lock}}")], "percentunit", top=1, links=DETAIL_LINK)),
        (8, lines("Acquire p99 by lock", "99th percentile of the time to get a lock.",
                  [(quantile("0.99", "acquire_duration_seconds", "lock", outcome("acquired")), "{{lock}}")], "s",
                  links=DETAIL_LINK)),
    )
    grid.row("Local queue and wake-ups")
    grid.line(
        9,
        (8, lines("Queue depth on arrival", "Local requests for the same key that were there before a newcomer. "
                  "High: one hot key. Near zero under much contention: many keys, or other instances.",
                  [(quantile("0.5", "queue_depth"), "p50"), (quantile("0.99", "queue_depth"), "p99")], "short")),
        (8, lines("Turns handed over", "Turns passed to the next local waiter by one swap of the token, against "
                  "all turns.",
                  [(rate("handovers_total"), "handed over"),
                   (rate("acquisitions_total", more=outcome("acquired")), "all turns")], "ops", fill=10)),
        (8, lines("Wake-ups by cause", "What ended a wait between two attempts. push: told by the store; ttl: "
                  "the holder's time was over; poll: the safety net; local: a turn passed in this process.",
                  [(rate("wakeups_total", "cause"), "{{cause}}")], "ops", stack=True, legend="list")),
    )
    grid.row("Lease health")
    grid.line(
        10,
        (6, lines("Hold time and lease", "How long locks are held, against the configured lease (dashed). "
                  "Longer than the lease is fine as long as renewals succeed.",
                  [(quantile("0.5", "hold_duration_seconds"), "p50"),
                   (quantile("0.99", "hold_duration_seconds"), "p99"),
                   (f"min ({metric('lease_ttl_seconds')})", "lease")], "s", limit="lease")),
        (6, lines("Renewals by outcome", "Lease renewals per second.",
                  [(rate("renewals_total", "outcome"), "{{outcome}}")], "ops", stack=True)),
        (6, lines("Renewal margin", "Share of the lease that was left when a renewal succeeded. A falling 5th "
                  "percentile warns before locks are lost.",
                  [(quantile("0.05", "renewal_margin_ratio"), "p5"),
                   (quantile("0.5", "renewal_margin_ratio"), "p50")], "percentunit", top=1,
                  thresholds=(("red", None), ("transparent", 0.2)), threshold_style="area")),
        (6, lines("Lost locks by reason", "Locks lost while their handler ran. expired: gone after its time; "
                  "deleted: gone before its time; taken_over: another owner; unconfirmed: no renewal was "
                  "confirmed in time; max_hold: held longer than allowed.",
                  [(increase("lost_total", "reason", window=WINDOW), "{{reason}}")], "short", stack=True,
                  bars=True, legend="list")),
    )
    grid.line(
        9,
        (6, lines("Unclean releases", "Releases per second that did not simply succeed. late: after the local "
                  "deadline; not_owned: key gone or a stranger's; error: store failed, the key lives on to its "
                  "TTL; skipped: the loss was already known.",
                  [(rate("releases_total", "outcome", 'outcome!="released"'), "{{outcome}}")], "ops",
                  stack=True, legend="list")),
        (6, lines("Handlers stopped", "Handlers that were dropped because their lock was lost.",
                  [(increase("handlers_aborted_total", "lock", window=WINDOW), "{{lock}}")], "short", stack=True,
                  bars=True)),
        (6, lines("Unprotected by reason", "Requests per second that ran without a lock. fail_open: the store "
                  "failed; no_key: nothing to lock; disabled: switched off.",
                  [(rate("bypassed_total", "reason"), "{{reason}}")], "reqps", stack=True)),
        (6, lines("Clean-ups by outcome", "Tokens of acquisitions whose result never arrived. removed: our key "
                  "was there and is gone; not_owned: nothing of ours was left; error: it stays until its TTL.",
                  [(rate("cleanups_total", "outcome"), "{{outcome}}")], "ops", stack=True)),
    )
    grid.row("Lock store")
    duration = "store_operation_duration_seconds"
    grid.line(
        10,
        (8, lines("Store round trip", "Time of one store operation, successful ones.",
                  [(quantile("0.5", duration, more=outcome("ok"), selector=INSTANCE), "all p50"),
                   (quantile("0.99", duration, "operation", outcome("ok"), INSTANCE), "{{operation}} p99")],
                  "s", legend="list")),
        (8, lines("Store operations", "Store operations per second, failed ones included.",
                  [(rate(duration + "_count", "operation", selector=INSTANCE), "{{operation}}")], "ops",
                  stack=True, legend="list")),
        (8, lines("Store errors", "Failed store operations per second; only the kinds that occur are drawn.",
                  [(rate("store_errors_total", selector=INSTANCE), "all"),
                   (rate("store_errors_total", "operation, kind", selector=INSTANCE) + " > 0",
                    "{{operation}} {{kind}}")], "ops", stack=True, bars=True, total="all", legend="list")),
    )
    grid.line(
        9,
        (8, lines("Pending operations", "Operations that still wait for their reply. They share connections, so "
                  "many at once are no queue, but a number that stays up is a store that does not answer.",
                  [(f"sum by (store, instance) ({metric('store_pending_operations', INSTANCE)})",
                    "{{store}} {{instance}}")], "short", legend="list")),
        (8, lines("Store reconnects", "Connections established anew.",
                  [(increase("store_reconnects_total", "store, instance", selector=INSTANCE, window=WINDOW),
                    "{{store}} {{instance}}")], "short", stack=True, bars=True)),
        (8, lines("Push wake-ups available", "On: the store pushes changes of keys. Off: waiting is polled and "
                  "a loss is noticed at the next renewal.",
                  [(f"min by (store, instance) ({metric('watch_up', INSTANCE)})", "{{store}} {{instance}}")],
                  "bool_on_off", top=1, step=True)),
    )
    grid.row("Build")
    grid.line(5, (24, table("Running versions", "Versions of the lock layer by instance.",
                            f"count by (version, instance, job) ({metric('build_info', INSTANCE)})", "short",
                            ["Time", "Value"], {"version": "Version", "instance": "Instance", "job": "Job"})))
    return dashboard("tower-lock-overview", "Request locks / Overview",
                     "Health of the request locks of a service: traffic, contention, leases and the lock store.",
                     grid, one_lock=False)


def detail():
    grid = Grid()

    def burn(window):
        part = f"sum (rate({metric('acquisitions_total', more=outcome('error'))}[{window}]))"
        whole = f"sum (rate({metric('acquisitions_total', more='outcome!=' + json.dumps('cancelled'))}[{window}]))"
        return f"({ratio(part, whole)}) / 0.001"

    decided = increase("acquisitions_total", more='outcome!="cancelled"')
    grid.row("Service level")
    grid.line(
        6,
        (4, stat("Availability", "Share of acquisitions that the lock store could decide, over the selected time "
                 "range. A contended lock counts as decided.",
                 "1 - " + ratio(increase("acquisitions_total", more=outcome("error")), decided), "percentunit",
                 [("red", None), ("yellow", 0.995), ("green", 0.999)], 3, instant=True)),
        (4, stat("Within 250 ms", "Share of successful acquisitions that took at most 250 ms, over the selected "
                 "time range.",
                 ratio(increase("acquire_duration_seconds_bucket", more='outcome="acquired",le="0.25"'),
                       increase("acquire_duration_seconds_count", more=outcome("acquired"))), "percentunit",
                 [("red", None), ("yellow", 0.98), ("green", 0.99)], 2, instant=True)),
        (4, stat("Kept to the end", "Share of granted locks that were not lost before their release, over the "
                 "selected time range.",
                 "1 - " + ratio(increase("lost_total"), increase("acquisitions_total", more=outcome("acquired"))),
                 "percentunit", [("red", None), ("green", 0.99999)], 3, instant=True)),
        (12, lines("Error budget burn rate", "How fast the 99.9 % availability budget is used up; 1 uses exactly "
                   "the budget. Pages start at 14.4 (1 h and 5 m) and 6 (6 h and 30 m).",
                   [(burn(window), window) for window in ("5m", "30m", "1h", "6h")], "short",
                   thresholds=(("transparent", None), ("yellow", 6), ("red", 14.4)), threshold_style="line",
                   legend="list")),
    )
    grid.row("Latency")
    grid.line(
        9,
        (8, lines("Acquire p99 by outcome", "99th percentile of the time to the outcome of an acquisition. Waits that "
                  "end at their limit fall into the bucket above it and read higher than they were.",
                  [(quantile("0.99", "acquire_duration_seconds", "outcome"), "{{outcome}}")], "s", legend="list")),
        (8, heatmap("Time to get the lock", "Acquisitions per latency bucket, successful ones.",
                    increase("acquire_duration_seconds_bucket", "le", outcome("acquired"), window=WINDOW), "s")),
        (8, heatmap("Hold time", "Locks per hold-time bucket.",
                    increase("hold_duration_seconds_bucket", "le", window=WINDOW), "s")),
    )
    grid.row("By instance")
    grid.line(
        9,
        (8, lines("Acquisitions by instance", "Finished acquisitions per second.",
                  [(rate("acquisitions_total", "instance"), "{{instance}}")], "reqps", fill=10)),
        (8, lines("Contention by instance", "Share of acquisitions whose first attempt found the lock taken.",
                  [(contention_ratio("instance"), "{{instance}}")], "percentunit", top=1)),
        (8, lines("Held and waiting by instance", "Locks held and acquisitions under way. A held line that never "
                  "comes back to zero without traffic is a leak.",
                  [(f"sum by (instance) ({metric('held')})", "held {{instance}}"),
                   (f"sum by (instance) ({metric('waiting')})", "waiting {{instance}}")], "short", legend="list")),
    )
    grid.row("Queueing")
    grid.line(
        9,
        (8, lines("Demand on the lock", "Mean number of holders (hold time times throughput) and of waiters, by "
                  "Little's law. Holders near 1 with one hot key: the key is saturated.",
                  [(rate("hold_duration_seconds_sum"), "mean holders"),
                   (rate("acquire_duration_seconds_sum"), "mean waiters")], "short")),
        (8, heatmap("Queue depth by arrivals", "Arrivals per number of local requests for the same key that were "
                    "there before. Broad load stays in the lowest bucket, a hot key climbs.",
                    increase("queue_depth_bucket", "le", window=WINDOW), "short")),
        (8, lines("Attempts needed", "Share of acquisitions that needed this many attempts or fewer.",
                  [(ratio(rate("acquire_attempts_bucket", more=f'le=~"{bound}([.]0)?"'),
                          rate("acquire_attempts_count")), f"≤ {bound}") for bound in (1, 2, 4, 8)],
                  "percentunit", top=1, legend="list")),
    )
    grid.line(
        9,
        (8, lines("Share of turns handed over", "Share of granted turns that came from a local hand-over instead "
                  "of a new acquisition in the store.",
                  [(ratio(rate("handovers_total", "instance"),
                          rate("acquisitions_total", "instance", outcome("acquired"))), "{{instance}}")],
                  "percentunit", top=1)),
        (8, lines("Wake-ups per wait", "Wake-ups by cause for each acquisition that found the lock taken. Much "
                  "poll: pushes are missing, or the store fails (pauses after an error count as poll).",
                  [(f"{rate('wakeups_total', 'cause')} / ignoring (cause) group_left () "
                    f"({rate('contention_total')} > 0)", "{{cause}}")], "short", stack=True, legend="list")),
        (8, lines("Responses by status", "Responses made by the layer instead of the handler, per second.",
                  [(rate("rejections_total", "status"), "{{status}}")], "reqps", stack=True, legend="list")),
    )
    grid.row("Lease events")
    grid.line(
        9,
        (8, lines("Losses and stopped handlers", "Locks lost by reason, and handlers that were dropped for it.",
                  [(increase("lost_total", "reason", window=WINDOW), "{{reason}}"),
                   (increase("handlers_aborted_total", window=WINDOW), "handlers stopped")], "short", stack=True,
                  bars=True, total="handlers stopped", legend="list")),
        (8, lines("Failed renewals and releases", "Renewals and releases per second that did not succeed.",
                  [(rate("renewals_total", "outcome", 'outcome!="renewed"'), "renewal {{outcome}}"),
                   (rate("releases_total", "outcome", 'outcome!="released"'), "release {{outcome}}")], "ops",
                  stack=True, bars=True, legend="list")),
        (8, lines("Bypasses and clean-ups", "Requests that ran without a lock, and tokens of unknown "
                  "acquisitions that were cleaned up, per second.",
                  [(rate("bypassed_total", "reason"), "bypassed {{reason}}"),
                   (rate("cleanups_total", "outcome"), "clean-up {{outcome}}")], "ops", stack=True, bars=True,
                  legend="list")),
    )
    return dashboard("tower-lock-detail", "Request locks / One lock",
                     "One lock in depth: service level, latency, instances, queueing and lease events.", grid,
                     one_lock=True)


def main():
    stale = False
    for board in (overview(), detail()):
        path = HERE / f"{board['uid']}.json"
        text = json.dumps(board, indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.name} is not what generate.py writes")
            stale = True
    sys.exit(stale)


if __name__ == "__main__":
    main()

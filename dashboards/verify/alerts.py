#!/usr/bin/env python3
"""Asserts that the incident raised the right alerts and no others.

usage: alerts.py REAL_URL SQUEEZED_URL PHASES.json
REAL_URL runs the rules as shipped, SQUEEZED_URL the same ones 60 times as fast (squeeze.py).
"""
import json
import sys
import time

from prometheus import Prometheus

real, squeezed = Prometheus(sys.argv[1]), Prometheus(sys.argv[2])
phases = json.load(open(sys.argv[3]))
now = time.time()

LOST = {f"TowerLockLost {reason}" for reason in ("unconfirmed", "deleted", "taken_over", "max_hold")}
# Two hours long, the incident raises these.
EXPECTED = LOST | {
    "TowerLockBypassed",           # B proceeds without Redis
    "TowerLockRenewalsFailing",    # what was held when Redis stood still
    "TowerLockReleasesFailing",
    "TowerLockContentionHigh",     # the hot order
    "TowerLockAcquireSlow",
    "TowerLockErrorBudgetBurn 1h",
    "TowerLockErrorBudgetBurn 6h",
    "TowerLockErrorBudgetBurn 1d",
}
# Squeezed windows of five seconds hold few operations: on a busy machine one round trip of 100 ms in each is enough.
# The rules as shipped must stay silent all the same.
MAY = {"TowerLockStoreSlow"}
# Two minutes long, only the alert without a wait fires, and these have begun to wait.
EXPECTED_AS_SHIPPED = LOST
WAITING_AS_SHIPPED = {name for name in EXPECTED if "Bu" in name or "Failing" in name or "Bypassed" in name}


def seen(prometheus, state, start, end):
    """{alert: time of its first sample} in that time"""
    answer = prometheus.get("/api/v1/query_range", query=f'ALERTS{{alertstate="{state}"}}', start=start, end=end,
                            step=1)
    alerts = {}
    for series in answer["data"]["result"]:
        labels = series["metric"]
        if labels.get("job", "orders") != "orders":
            sys.exit(f"an alert for the instance without traffic: {labels}")
        name = " ".join([labels["alertname"], *(labels[k] for k in ("reason", "long") if k in labels)])
        first = float(series["values"][0][0])
        alerts[name] = min(first, alerts.get(name, first))
    return alerts


problems = []


def compare(what, found, expected):
    if missing := expected - set(found):
        problems.append(f"{what}: missing {sorted(missing)}")
    if extra := set(found) - expected:
        problems.append(f"{what}: not expected {sorted(extra)}")


start, trouble = phases["good"], phases["redis stands still"]
for name, prometheus in (("as shipped", real), ("squeezed", squeezed)):
    compare(f"firing in the good time, {name}", seen(prometheus, "firing", start, trouble), set())
    waiting = set(seen(prometheus, "pending", start, trouble))
    compare(f"pending in the good time, {name}", waiting - MAY, set())
firing = seen(squeezed, "firing", trouble, now)
compare("firing, squeezed", set(firing) - MAY, EXPECTED)
compare("firing, as shipped", seen(real, "firing", trouble, now), EXPECTED_AS_SHIPPED)
waiting = seen(real, "pending", trouble, now)
if missing := WAITING_AS_SHIPPED - set(waiting):
    problems.append(f"waiting, as shipped: missing {sorted(missing)}")

for name, at in sorted(firing.items(), key=lambda item: item[1]):
    phase = max((p for p in phases if phases[p] <= at), key=phases.get)
    print(f"{at - start:5.0f} s  {phase:20} {name}")
for prometheus in (real, squeezed):
    for group in prometheus.get("/api/v1/rules")["data"]["groups"]:
        problems += [f"rule {r['name']}: {r.get('lastError')}" for r in group["rules"] if r["health"] != "ok"]
print("\n".join(problems))
print(f"{len(firing)} alerts fired, {len(problems)} problems")
sys.exit(bool(problems))

#!/usr/bin/env python3
"""Negative control for the rule tests: every deliberate defect in a rule must make a test fail.

usage: mutate_rules.py DASHBOARDS_DIR
Each mutant runs only with the rules and the test cases that have to do with the mutated rule.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

FOLDER = pathlib.Path(sys.argv[1])
RULE_FILES = ["tower-lock.rules.yml", "tower-lock.alerts.yml", "tower-lock.latency-slo.yml"]
TEST_FILES = ["tower-lock.test.yml", "tower-lock.slow.test.yml"]


def read_rules():
    """(group, name, text) of every rule; comments between rules are dropped."""
    for file in RULE_FILES:
        group = None
        lines = [line for line in (FOLDER / file).read_text().splitlines() if not line.lstrip().startswith("#")]
        for block in re.split(r"\n(?=  - name: |      - (?:alert|record): )", "\n".join(lines)):
            if match := re.match(r"  - name: (\S+)", block):
                group = match[1]
            elif match := re.match(r"      - (?:alert|record): (\S+)", block):
                yield group, match[1], block


def read_cases():
    """(line with the evaluation interval, text) of every test case"""
    for file in TEST_FILES:
        head, cases = (FOLDER / file).read_text().split("\ntests:\n")
        interval = re.search(r"^evaluation_interval: .*$", head, re.M)[0]
        for case in re.split(r"\n(?=  - name: )", cases):
            yield interval, case


RULES = list(read_rules())
CASES = list(read_cases())


def times(factor, text, pattern):
    """Every number that `pattern` finds as its group 1, multiplied; one mutant per place."""
    for match in re.finditer(pattern, text):
        number = float(match[1]) * factor
        yield text[:match.start(1)] + f"{number:g}" + text[match.end(1):]


def mutants(text):
    """(what was done, mutated text of the rule)"""
    for factor in (2, 0.5):
        for mutant in times(factor, text, r"[<>=]=? ([0-9.]*[1-9][0-9.]*)\b"):
            yield f"threshold x{factor}", mutant
        for mutant in times(factor, text, r"\(([0-9.]+) \* "):
            yield f"factor x{factor}", mutant
    for window in dict.fromkeys(re.findall(r"\[(\d+)([mhd])\]", text)):
        yield f"window [{window[0]}{window[1]}] x10", text.replace("[%s%s]" % window, f"[{int(window[0]) * 10}{window[1]}]")
    for mutant in times(3, text, r"\n        for: (\d+)"):
        yield "for x3", mutant
    for mutant in times(6, text, r"keep_firing_for: (\d+)"):
        yield "keep_firing_for x6", mutant
    for change, pattern, replacement in (
        ("no for", r"\n        for: \w+", ""),
        ("no keep_firing_for", r"\n        keep_firing_for: \w+", ""),
        ("severity", r"severity: critical", "severity: warning"),
        ("severity", r"severity: warning", "severity: critical"),
        ("no traffic guard", r"\n +and on \(job, lock\)\n.*> 0\.1\b", ""),
        ("no guard against 0/0", r"\((.*) > 0\)$", r"(\1)"),  # in an alert a comparison follows: NaN is false
        ("no guard against NaN", r" >= 0", ""),
        ("absent -> present", "absent_over_time", "present_over_time"),
        ("denominator without contended", 'outcome!="cancelled"', 'outcome!~"cancelled|contended"'),
        ("denominator without queue_full", 'outcome!="cancelled"', 'outcome!~"cancelled|queue_full"'),
        ("denominator with cancelled", 'outcome!="cancelled"', 'outcome=~".+"'),
        ("per instance", r"by \(job, (?!instance)", "by (job, instance, "),
        ("all outcomes", r'\{outcome="(ok|acquired)"', '{outcome=~".+"'),
        ("all reasons", r'reason="fail_open"', 'reason=~".+"'),
        ("without late", r"error\|late\|not_owned", "error|not_owned"),
        ("without not_owned", r"error\|late\|not_owned", "error|late"),
        ("without error", r"error\|late\|not_owned", "late|not_owned"),
        ("max for min", r"min by", "max by"),
        ("no unless", r"\n +unless on.*\n.*", ""),
        ("short window ignored", r"\n +and on \(job, lock\)\n.*ratio_rate.*", ""),
        ("a day of pushes ignored", r"\n +and on \(job, store\)\n +max by.*", ""),
    ):
        mutant = re.sub(pattern, replacement, text)
        if mutant != text:
            yield change, mutant


def related(name):
    """Names that the rule uses or that use it, itself included; read from the texts."""
    names = {name}
    for _, other, text in RULES:
        if name in text:
            names.add(other)
        if other == name:
            names |= {n for _, n, _ in RULES if n in text}
    for _, other, text in RULES:  # what the dependents need in turn
        if other in names:
            names |= {n for _, n, _ in RULES if n in text}
    return names


def survives(position, mutant):
    _, name, _ = RULES[position]
    wanted = related(name)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        lines, group = ["groups:"], None
        for i, (its_group, its_name, text) in enumerate(RULES):
            if its_name in wanted:
                if its_group != group:
                    group = its_group
                    lines += [f"  - name: {group}", "    rules:"]
                lines.append(mutant if i == position else text)
        (folder / "rules.yml").write_text("\n".join(lines) + "\n")
        groups = list(dict.fromkeys(g for g, n, _ in RULES if n in wanted))
        # An alert shows in the cases that name it, a recording also in those of the alerts that read it.
        names = wanted if ":" in name else {name}
        chosen = [(interval, case) for interval, case in CASES if any(n in case for n in names)]
        window = re.search(r"long: (\w+)", RULES[position][2])
        likely = rf'long(: |=\\?"){window[1]}\b' if window else re.escape(name)
        for interval, case in sorted(chosen, key=lambda c: not re.search(likely, c[1])):
            (folder / "test.yml").write_text("\n".join(
                ["rule_files: [rules.yml]", interval, f"group_eval_order: [{', '.join(groups)}]", "tests:", case]))
            if subprocess.run(["promtool", "test", "rules", folder / "test.yml"], capture_output=True).returncode:
                return False
    return True


def main():
    jobs = [(i, change, mutant) for i, (_, _, text) in enumerate(RULES) for change, mutant in mutants(text)]
    unmutated = {frozenset(related(name)): i for i, (_, name, _) in enumerate(RULES)}
    with ThreadPoolExecutor(2) as pool:
        for i, passes in zip(unmutated.values(), pool.map(lambda i: survives(i, RULES[i][2]), unmutated.values())):
            if not passes:
                sys.exit(f"the tests of {RULES[i][1]} fail without any mutation")
        survivors = list(pool.map(lambda job: survives(job[0], job[2]), jobs))
    for (i, change, _), alive in zip(jobs, survivors):
        if alive:
            print(f"SURVIVED {RULES[i][1]}: {change}")
    print(f"{len(jobs) - sum(survivors)} of {len(jobs)} rule mutations caught")
    sys.exit(any(survivors))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Rules on a clock that runs 60 times as fast: a minute becomes a second, in windows and in waits.

usage: squeeze.py RULES.yml OUT.yml
With a scrape per second, a run of two minutes then stands for two hours, and an alert that waits ten
minutes can be seen to fire. Thresholds and names stay as they are.
"""
import re
import sys

SECONDS = {"m": 1, "h": 60, "d": 24 * 60}

source, out = sys.argv[1:]


def squeeze(match):
    return f"{match[1]}{int(match[2]) * SECONDS[match[3]]}s{match[4]}"


text = open(source).read()
text = re.sub(r"(\[)(\d+)([mhd])(\])", squeeze, text)
text = re.sub(r"(\n +(?:for|keep_firing_for): )(\d+)([mhd])(\n)", squeeze, text)
open(out, "w").write(text)

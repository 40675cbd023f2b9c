#!/usr/bin/env bash
# Proves the dashboards, rules and alerts on the real product: two `orders` instances, a Redis, a load with an
# incident, and a Prometheus that scrapes them. About three minutes. README.md says what is checked.
#
#   ./verify.sh              ORDERS=path/of/orders saves the build, SKIP_INSTALL=1 the look for missing packages
#   PICTURES=1 ./verify.sh   also draws overview.png and detail.png (needs Chromium and 420 MB from npm)
#   KEEP=folder ./verify.sh  leaves logs, scrapes and query results there
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
tools=$here/verify
work=$(mktemp -d)
background=()
running=
failed=0
began=$SECONDS

# start NAME COMMAND...: in the background; its pid is in $work/NAME.pid until it is stopped.
start() {
    local name=$1
    shift
    ("$@" >"$work/$name.out" 2>"$work/$name.err" & echo $! >"$work/$name.pid")
}

clean_up() {
    local file pid
    for pid in "${background[@]}" $running; do kill "$pid" 2>/dev/null || true; done
    for file in "$work"/*.pid; do
        pid=$(cat "$file")
        kill -CONT "$pid" 2>/dev/null && kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    if [ -n "${KEEP:-}" ]; then mkdir -p "$KEEP" && cp -r "$work/." "$KEEP"; fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# check NAME COMMAND...: runs it, says how it went; its output is shown when it fails.
check() {
    local name=$1 start=$SECONDS status=0
    shift
    # In the background, so that a signal ends the script at once.
    "$@" <&0 >"$work/log" 2>&1 &
    running=$!
    wait "$running" || status=$?
    running=
    report "$name" "$status" "$work/log" "$((SECONDS - start)) s"
}

report() { # NAME STATUS LOG TIME
    if [ "$2" -eq 0 ]; then
        echo "ok    $1: $(grep . "$3" | tail -n 1 | cut -c 1-100) ($4)"
    else
        echo "FAIL  $1"
        sed 's/^/        /' "$3" | head -n 60
        failed=$((failed + 1))
    fi
}

# Checks that need no server run beside the load, with the time that it leaves.
check_later() { # NAME COMMAND...
    local name=$1
    shift
    nice -n 19 "$@" >"$work/later.${#background[@]}" 2>&1 &
    background+=($!)
    later+=("$name")
}

report_later() {
    local i status
    for i in "${!later[@]}"; do
        status=0
        wait "${background[$i]}" || status=$?
        report "${later[$i]}" "$status" "$work/later.$i" "beside the load"
    done
}
later=()

wait_for() { # URL
    for _ in $(seq 100); do curl -sf "$1" >/dev/null && return; sleep 0.1; done
    echo "nothing answers at $1" >&2
    exit 1
}

targets_up() { # URL HOW_MANY
    local up=
    for _ in $(seq 150); do
        up=$(curl -sf "$1/api/v1/query" --data-urlencode 'query=count(count_over_time(up[1m]) > 2 and up == 1)' | jq -r '.data.result[0].value[1] // 0')
        [ "$up" = "$2" ] && return
        sleep 0.1
    done
    echo "$up of $2 targets are up"
    return 1
}

free_ports() { # HOW_MANY
    python3 -c 'import socket, sys
s = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(x.getsockname()[1] for x in s))' "$1"
}

install_missing() {
    local missing=()
    command -v promtool >/dev/null || missing+=(prometheus)
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v jq >/dev/null || missing+=(jq)
    command -v curl >/dev/null || missing+=(curl)
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    if [ -n "${PICTURES:-}" ]; then
        command -v chromium >/dev/null || missing+=(chromium)
        command -v pngquant >/dev/null || missing+=(pngquant)
        fc-list 2>/dev/null | grep -q Inter || missing+=(fonts-inter)
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        # Debian would start the services at once; here each is started and stopped by hand.
        local policy=/usr/sbin/policy-rc.d status=0
        if [ -e $policy ]; then policy=; else printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy; fi
        apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" || status=$?
        rm -f ${policy:+"$policy"}
        [ "$status" -eq 0 ] || return "$status"
    fi
    cmp -s "$tools/package-lock.json" "$tools/node_modules/.installed" && return
    (cd "$tools" && npm ci --ignore-scripts --no-audit --no-fund) &&
        cp "$tools/package-lock.json" "$tools/node_modules/.installed"
}

start_orders() { # NAME OPTION...
    local name=$1
    shift
    start "$name" "$ORDERS" --listen 127.0.0.1:0 --redis-url "redis://127.0.0.1:$redis_port" --ttl 6s --max-wait 1s "$@"
    for _ in $(seq 100); do
        url=$(sed -n 's/^listening on //p' "$work/$name.out" 2>/dev/null || true)
        [ -n "$url" ] && return
        sleep 0.1
    done
    echo "orders does not start" >&2
    cat "$work/$name.err" >&2
    exit 1
}

start_prometheus() { # NAME PORT RULES...
    local name=$1 port=$2
    shift 2
    mkdir "$work/$name"
    cat >"$work/$name.yml" <<YAML
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [$(IFS=,; echo "$*")]
scrape_configs:
  - {job_name: orders, static_configs: [{targets: ["${url_a#http://}", "${url_b#http://}"]}]}
  - {job_name: quiet, static_configs: [{targets: ["${url_quiet#http://}"]}]}
YAML
    start "$name" prometheus --config.file="$work/$name.yml" --storage.tsdb.path="$work/$name" --log.level=warn \
        --web.listen-address="127.0.0.1:$port"
}

series() { grep -c '^tower_lock_' "$1"; }

scrape() { curl -sf "$1/metrics" >"$2"; }

same_series() { # BEFORE AFTER
    local before after
    before=$(series "$1") after=$(series "$2")
    [ "$before" = "$after" ] && echo "$after series before and after"
}

no_lock_left_behind() { # METRICS: what was acquired was released, and both gauges are at zero
    awk '/^tower_lock_acquisitions_total.*outcome="acquired"/ { acquired = $2 }
         /^tower_lock_releases_total/ { releases += $2 }
         /^tower_lock_held/ { held = $2 }
         /^tower_lock_waiting/ { waiting = $2 }
         END { print acquired " acquired, " releases " releases, " held " held, " waiting " waiting"
               exit !(acquired > 0 && acquired == releases && held == 0 && waiting == 0) }' "$1"
}

[ -n "${SKIP_INSTALL:-}" ] || check "what is needed is installed" install_missing
if [ -z "${ORDERS:-}" ]; then
    ORDERS=$(cd "$root" && cargo build --quiet --example orders --all-features --message-format json |
        jq -r 'select(.target.name == "orders" and .executable != null).executable')
fi
rules=("$here/tower-lock.rules.yml" "$here/tower-lock.alerts.yml")
boards=("$here/tower-lock-overview.json" "$here/tower-lock-detail.json")

# 1. Without any server.
check "dashboards are generated" python3 "$here/generate.py" --check
check "promtool check rules" promtool check rules --lint=all --lint-fatal "${rules[@]}" "$here/tower-lock.latency-slo.yml"
check_later "promtool test rules" promtool test rules "$here/tower-lock.test.yml" "$here/tower-lock.slow.test.yml"
check_later "defects in rules" python3 "$tools/mutate_rules.py" "$here"
check "Grafana's types" node "$tools/typecheck.mjs" "${boards[@]}"
check "compose stack" node "$tools/compose.mjs" "$root/examples/observability" "$work"

# 2. Cold: three instances that have seen no request.
read -r redis_port real_port squeezed_port < <(free_ports 3)
start redis redis-server --port "$redis_port" --bind 127.0.0.1 --save '' --dir "$work"
for _ in $(seq 50); do redis-cli -p "$redis_port" ping >/dev/null 2>&1 && break; sleep 0.1; done
start_orders a --on-lost abort --on-store-error reject && url_a=$url
start_orders b --on-lost notify --on-store-error proceed --max-hold 8s && url_b=$url
start_orders quiet && url_quiet=$url
scrape "$url_quiet" "$work/cold.txt"
check "promtool check metrics, cold" promtool check metrics <"$work/cold.txt"
check "names" python3 "$tools/names.py" "$root" "$work/cold.txt"

# 3. Ten thousand orders must not make a series.
scrape "$url_a" "$work/before.txt"
check "ten thousand orders" python3 "$tools/load.py" keys "$url_a" "$url_b"
scrape "$url_a" "$work/after.txt"
check "series per instance" same_series "$work/before.txt" "$work/after.txt"

# 4. The incident, seen by a Prometheus with our rules and by one on which they run 60 times as fast.
squeezed=()
for file in "${rules[@]}"; do
    python3 "$tools/squeeze.py" "$file" "$work/squeezed.$(basename "$file")"
    squeezed+=("$work/squeezed.$(basename "$file")")
done
start_prometheus real "$real_port" "${rules[@]}"
start_prometheus squeezed "$squeezed_port" "${squeezed[@]}"
real=http://127.0.0.1:$real_port squeezed_url=http://127.0.0.1:$squeezed_port
for url in "$real" "$squeezed_url"; do wait_for "$url/-/ready"; done
check "promtool check config" promtool check config "$work/real.yml"
check "dashboard lint" python3 "$tools/lint.py" "$real" "$work/cold.txt" "${boards[@]}"
for url in "$real" "$squeezed_url"; do check "three targets are scraped" targets_up "$url" 3; done
check "load with an incident" python3 "$tools/load.py" incident "$url_a" "$url_b" "$redis_port" "$work"

# 5. What is left of it.
scrape "$url_a" "$work/warm.txt"
check "promtool check metrics, warm" promtool check metrics <"$work/warm.txt"
check "series after the incident" same_series "$work/before.txt" "$work/warm.txt"
check "nothing is held" no_lock_left_behind "$work/warm.txt"
check "alerts" python3 "$tools/alerts.py" "$real" "$squeezed_url" "$work/phases.json"
check "series move" python3 "$tools/moves.py" "$real" "$work/phases.json"
check "panels under load" python3 "$tools/panels.py" loaded "$real" orders "$work/phases.json" "$work/frames.json" "${boards[@]}"
check "panels without traffic" python3 "$tools/panels.py" quiet "$real" quiet "$work/phases.json" "$work/quiet.json" "${boards[@]}"

# 6. Do the checks see anything at all?
check "defects in dashboards" python3 "$tools/mutate_dashboards.py" "$real" "$work/cold.txt" "$work/phases.json" "${boards[0]}"
report_later

if [ -n "${PICTURES:-}" ]; then
    check "pictures" "$tools/pictures/draw.sh" "$work/frames.json" "$here"
fi
echo "$((SECONDS - began)) s, $failed checks failed"
exit $((failed > 0))

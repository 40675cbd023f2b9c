#!/usr/bin/env bash
# Everything that has to hold before a change lands. Needs Rust and apt; installs what else is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '\n== %s\n' "$*"; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs the packages whose program is missing. Each argument: program=package.
install_missing() {
  local pair missing=()
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || {
    echo "missing, and there is no apt-get to install it: ${missing[*]}" >&2
    exit 1
  }
  step "installing ${missing[*]}"
  # The tests start servers of their own; Debian would start one more with the package.
  local policy=/usr/sbin/policy-rc.d made_policy=no
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made_policy=yes
  fi
  local status=0
  { as_root apt-get update -q &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"; } || status=$?
  [ "$made_policy" = no ] || as_root rm -f "$policy"
  return "$status"
}

install_missing redis-server=redis-server redis-sentinel=redis-sentinel redis-cli=redis-tools faketime=faketime

step "format"
cargo fmt --all --check

step "clippy"
cargo clippy --all-targets --all-features -- -D warnings

step "tests, documentation's examples included"
# Most of them wait for a server most of the time, so more of them than cores run at once.
export CHAOS_SECONDS="${CHAOS_SECONDS:-120}"
cargo test --all-features -- --test-threads "${TEST_THREADS:-6}"

step "the queue under many interleavings"
RUSTFLAGS="--cfg tower_lock_shuttle" cargo test --lib --target-dir target/shuttle interleavings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

for feature in "" axum prometheus store-contract tls-rustls; do
  step "the library with ${feature:-no} feature${feature:+ alone}"
  cargo clippy --no-default-features --features "$feature" -- -D warnings
done

step "dashboards, rules and alerts, on a real Prometheus"
ORDERS="$(realpath "${CARGO_TARGET_DIR:-target}")/debug/examples/orders" dashboards/verify.sh

step "all is well"

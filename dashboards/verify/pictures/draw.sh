#!/usr/bin/env bash
# usage: draw.sh FRAMES.json DASHBOARDS_DIR: draws overview.png and detail.png there from the answers in FRAMES.json.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
frames=$1
out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"
[ -d node_modules/@grafana/ui ] || npm ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund
echo 'export default {}; export const editor = {}, languages = {};' >"$work/empty.js"
node_modules/@esbuild/linux-x64/bin/esbuild main.jsx --bundle --minify --format=iife --jsx=automatic --log-level=error \
    --loader:.svg=dataurl --loader:.woff2=dataurl --loader:.ttf=empty --outfile="$work/bundle.js" \
    --alias:monaco-editor="$work/empty.js" --alias:react-monaco-editor="$work/empty.js" \
    '--define:process.env.NODE_ENV="production"' --define:global=window
cat >"$work/page.html" <<'HTML'
<!doctype html><meta charset="utf-8"><body style="margin:0;background:#111217"><link rel="stylesheet" href="bundle.css">
<div id="root"></div><script>window.__grafana_public_path__ = "";</script>
<script src="input.js"></script><script src="bundle.js"></script>
HTML
for name in overview detail; do
    board=$out/tower-lock-$name.json
    jq -n --slurpfile d "$board" --slurpfile f "$frames" '{dashboard: $d[0], data: $f[0]}' | sed '1s/^/window.INPUT = /' >"$work/input.js"
    height=$(jq '([.panels[].gridPos | .y + .h] | max) * 36 + 60' "$board")
    nice chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files \
        --user-data-dir="$work/profile" --window-size="1600,$height" --virtual-time-budget=8000 \
        --screenshot="$work/$name.png" "file://$work/page.html" >"$work/chromium.log" 2>&1 || { cat "$work/chromium.log"; exit 1; }
    pngquant --force --speed 1 --output "$out/$name.png" 96 "$work/$name.png"
done
ls -l "$out/overview.png" "$out/detail.png"

#!/bin/sh
# A shop's traffic on the instances given as arguments: many orders, a few that are wanted twice, some exports.
# A file /hot in the container makes one order hot.
ship() { wget -q -T 10 -O /dev/null --post-data='' "http://$1/orders/$2/ship?work_ms=$3"; }

seed=0
for instance in "$@"; do
    for worker in 1 2 3 4; do
        seed=$((seed + 1))
        while :; do
            seed=$(((seed * 1103515245 + 12345) % 2147483648))
            ship "$instance" "$((seed / 65536 % 400))" $((5 + seed / 65536 % 30))
            sleep 0.1
        done &
    done
    while :; do ship "$instance" shared 60; sleep 0.5; done &
    while :; do wget -q -T 30 -O /dev/null "http://$instance/orders/export-$instance/export?chunks=8&chunk_ms=500"; sleep 1; done &
    for worker in 1 2 3 4 5 6 7 8 9 10; do
        while :; do [ -e /hot ] && ship "$instance" hot 50; sleep 0.1; done &
    done
done
wait

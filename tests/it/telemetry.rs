//! What is exported: each series from the start, closed labels, sums that add up.

use std::collections::{BTreeMap, BTreeSet};

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use metrics_util::{MetricKind, MetricKindMask};
use tokio::time::sleep;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::metrics::set_default_local_recorder;
use tower_redis_lock::store::StoreErrorKind;
use tower_redis_lock::telemetry::names::*;
use tower_redis_lock::telemetry::prometheus::{MetricsService, with_buckets};
use tower_redis_lock::{LockLayer, LockSettings, Locker};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, locker_builder, quick};
use crate::layer::{TestBody, by_path, done, post, request, send};
use crate::support::eventually::{eventually, ms, secs};
use crate::support::metrics_text::Metrics;
use crate::support::running::Running;

/// A metric of the catalogue: its kind, and the values that each of its labels may have.
type Entry = (&'static str, MetricKind, &'static [(&'static str, &'static [&'static str])]);

const LOCK: (&str, &[&str]) = ("lock", &["orders"]);
const STORE: (&str, &[&str]) = ("store", &["main"]);
const OUTCOMES: &[&str] = &["acquired", "contended", "queue_full", "error", "cancelled"];
const OPERATIONS: &[&str] = &["acquire", "renew", "release", "fence", "watch"];
const KINDS: &[&str] = &[
    "timeout",
    "connect",
    "auth",
    "tls",
    "readonly",
    "loading",
    "oom",
    "noperm",
    "wrongtype",
    "moved",
    "busy",
    "noreplicas",
    "clusterdown",
    "server",
    "protocol",
];

/// The catalogue, as dashboards and alerts read it.
const CATALOGUE: &[Entry] = &[
    (ACQUISITIONS, MetricKind::Counter, &[LOCK, ("outcome", OUTCOMES)]),
    (ACQUIRE_DURATION, MetricKind::Histogram, &[LOCK, ("outcome", OUTCOMES)]),
    (ACQUIRE_ATTEMPTS, MetricKind::Histogram, &[LOCK]),
    (CONTENTION, MetricKind::Counter, &[LOCK]),
    (WAITING, MetricKind::Gauge, &[LOCK]),
    (HELD, MetricKind::Gauge, &[LOCK]),
    (HOLD_DURATION, MetricKind::Histogram, &[LOCK]),
    (RENEWALS, MetricKind::Counter, &[LOCK, ("outcome", &["renewed", "not_owned", "error"])]),
    (RENEWAL_MARGIN, MetricKind::Histogram, &[LOCK]),
    (
        LOST,
        MetricKind::Counter,
        &[LOCK, ("reason", &["expired", "deleted", "taken_over", "unconfirmed", "max_hold"])],
    ),
    (
        RELEASES,
        MetricKind::Counter,
        &[LOCK, ("outcome", &["released", "late", "not_owned", "error", "skipped"])],
    ),
    (BYPASSED, MetricKind::Counter, &[LOCK, ("reason", &["fail_open", "no_key", "disabled"])]),
    (REJECTIONS, MetricKind::Counter, &[LOCK, ("status", &["400", "409", "500", "503"])]),
    (HANDLERS_ABORTED, MetricKind::Counter, &[LOCK]),
    (STORE_ERRORS, MetricKind::Counter, &[STORE, ("operation", OPERATIONS), ("kind", KINDS)]),
    (
        STORE_OPERATION_DURATION,
        MetricKind::Histogram,
        &[STORE, ("operation", OPERATIONS), ("outcome", &["ok", "error"])],
    ),
    (STORE_PENDING_OPERATIONS, MetricKind::Gauge, &[STORE]),
    (STORE_RECONNECTS, MetricKind::Counter, &[STORE]),
    (WATCH_UP, MetricKind::Gauge, &[STORE]),
    (LEASE_TTL, MetricKind::Gauge, &[LOCK]),
    (ACQUIRE_TIMEOUT, MetricKind::Gauge, &[LOCK]),
    (QUEUE_DEPTH, MetricKind::Histogram, &[LOCK]),
    (HANDOVERS, MetricKind::Counter, &[LOCK]),
    (WAKEUPS, MetricKind::Counter, &[LOCK, ("cause", &["push", "ttl", "poll", "local"])]),
    (CLEANUPS, MetricKind::Counter, &[LOCK, ("outcome", &["removed", "not_owned", "error"])]),
    (BUILD_INFO, MetricKind::Gauge, &[("version", &[env!("CARGO_PKG_VERSION")])]),
];

/// Each series as `name{label=value,…}`.
fn expected_series() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, _, labels) in CATALOGUE {
        let mut series = vec![Vec::new()];
        for (label, values) in *labels {
            series = series
                .into_iter()
                .flat_map(|labels: Vec<String>| {
                    values.iter().map(move |value| {
                        let mut labels = labels.clone();
                        labels.push(format!("{label}={value}"));
                        labels
                    })
                })
                .collect();
        }
        all.extend(series.into_iter().map(|labels| series_name(name, labels)));
    }
    all
}

fn series_name(name: &str, mut labels: Vec<String>) -> String {
    labels.sort();
    format!("{name}{{{}}}", labels.join(","))
}

/// What a debugging recorder has seen: series, kind, and value.
fn snapshot(recorder: &DebuggingRecorder) -> BTreeMap<String, (MetricKind, DebugValue)> {
    let seen = recorder.snapshotter().snapshot().into_vec();
    seen.into_iter()
        .map(|(composite, _, _, value)| {
            let (kind, key) = composite.into_parts();
            let labels = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            (series_name(key.name(), labels), (kind, value))
        })
        .collect()
}

fn orders(store: &ScriptedStore) -> Locker {
    locker_builder(store.clone(), quick()).name("orders").store_name("main").build().unwrap()
}

/// Configuration, and the version: not 0 from the start.
fn is_constant(series: &str) -> bool {
    [LEASE_TTL, ACQUIRE_TIMEOUT, BUILD_INFO].iter().any(|name| series.starts_with(name))
}

#[test]
fn the_catalogue_of_this_test_is_the_one_of_the_crate() {
    let source = include_str!("../../src/telemetry/names.rs");
    let names = source.split('"').filter(|text| text.starts_with("tower_lock_"));
    assert_eq!(names.collect::<BTreeSet<_>>(), CATALOGUE.iter().map(|entry| entry.0).collect());
    for (name, kind, _) in CATALOGUE {
        let has_buckets = BUCKETS.iter().any(|(bucketed, _)| bucketed == name);
        assert_eq!(has_buckets, *kind == MetricKind::Histogram, "{name}");
        assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_series_exists_at_zero_once_it_is_registered_and_no_other() {
    let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
    let _recording = set_default_local_recorder(recorder);
    orders(&ScriptedStore::new()).register_metrics();
    let seen = snapshot(recorder);
    assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), expected_series());
    for (series, (kind, value)) in &seen {
        let name = series.split('{').next().unwrap();
        let entry = CATALOGUE.iter().find(|entry| entry.0 == name).unwrap();
        assert_eq!(*kind, entry.1, "{series}");
        let zero = match value {
            DebugValue::Counter(count) => *count == 0,
            DebugValue::Gauge(value) => value.0 == 0.0,
            DebugValue::Histogram(samples) => samples.is_empty(),
        };
        assert_eq!(zero, !is_constant(series) || series.starts_with(ACQUIRE_TIMEOUT), "{series}: {value:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_series_exists_from_the_first_acquisition_without_registration() {
    let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
    let _recording = set_default_local_recorder(recorder);
    let store = ScriptedStore::new();
    store.rival_takes(&key("k"));
    orders(&store).acquire(&key("k")).await.unwrap_err();
    let seen = snapshot(recorder);
    assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), expected_series());
    let moved: BTreeSet<_> = seen
        .iter()
        .filter(|(series, (_, value))| !is_constant(series) && *value != DebugValue::Counter(0))
        .filter(|(_, (kind, _))| *kind == MetricKind::Counter)
        .map(|(series, (_, value))| format!("{series} {value:?}"))
        .collect();
    let expected = [
        "tower_lock_acquisitions_total{lock=orders,outcome=contended} Counter(1)",
        "tower_lock_contention_total{lock=orders} Counter(1)",
    ];
    assert_eq!(moved, expected.map(str::to_owned).into());
}

#[tokio::test(start_paused = true)]
async fn registering_again_changes_nothing() {
    let recorded = Recorded::start();
    let locker = orders(&ScriptedStore::new());
    let guard = locker.acquire(&key("k")).await.unwrap();
    locker.register_metrics();
    locker.clone().register_metrics();
    orders(&ScriptedStore::new()).register_metrics();
    assert_eq!(recorded.sum(HELD, &[]), 1.0);
    assert_eq!(recorded.acquisitions("acquired"), 1.0);
    guard.release().await.unwrap();
    recorded.check_settled(1).await;
}

#[tokio::test(start_paused = true)]
async fn settings_are_exported_for_those_who_compare_with_them() {
    let recorded = Recorded::start();
    let locker = orders(&ScriptedStore::new());
    let settings = LockSettings::builder().ttl(secs(7)).max_wait(ms(1500)).build().unwrap();
    let slow = locker.with_settings(settings).with_name("slow");
    locker.register_metrics();
    slow.register_metrics();
    let metrics = recorded.metrics();
    assert_eq!(metrics.value(LEASE_TTL, &[("lock", "orders")]), 3.0);
    assert_eq!(metrics.value(ACQUIRE_TIMEOUT, &[("lock", "orders")]), 0.0);
    assert_eq!(metrics.value(LEASE_TTL, &[("lock", "slow")]), 7.0);
    assert_eq!(metrics.value(ACQUIRE_TIMEOUT, &[("lock", "slow")]), 1.5);
    assert_eq!(metrics.value(BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
}

// B80
#[tokio::test(start_paused = true)]
async fn a_recorder_may_come_late_or_be_replaced_or_not_come_at_all() {
    let locker = orders(&ScriptedStore::new());
    let held = locker.acquire(&key("before")).await.unwrap();
    locker.acquire(&key("k")).await.unwrap().release().await.unwrap();

    let first = Recorded::start();
    locker.acquire(&key("k")).await.unwrap().release().await.unwrap();
    assert_eq!(first.acquisitions("acquired"), 1.0, "not deaf");
    assert_eq!(first.metrics().value(LOST, &[("reason", "expired")]), 0.0, "with all zeros");
    held.release().await.unwrap();
    assert_eq!(first.sum(HELD, &[]), 0.0, "never below zero");
    let across = locker.acquire(&key("across")).await.unwrap();
    assert_eq!(first.sum(HELD, &[]), 1.0);

    let second = Recorded::start();
    locker.acquire(&key("k")).await.unwrap().release().await.unwrap();
    assert_eq!(second.acquisitions("acquired"), 1.0);
    assert_eq!(second.metrics().value(LOST, &[("reason", "expired")]), 0.0);
    across.release().await.unwrap();
    assert_eq!((first.sum(HELD, &[]), second.sum(HELD, &[])), (0.0, 0.0), "each in its own cell");
}

// B76, B77
#[tokio::test(start_paused = true)]
async fn histograms_have_buckets_that_hold_the_truth() {
    let recorded = Recorded::start();
    let locker = orders(&ScriptedStore::new());
    let holds = [ms(2), ms(50), secs(1), secs(20), secs(180)];
    for hold in holds {
        let guard = locker.acquire(&key("k")).await.unwrap();
        sleep(hold).await;
        guard.release().await.unwrap();
    }
    let text = recorded.text();
    for (name, edges) in BUCKETS {
        assert!(text.contains(&format!("# TYPE {name} histogram\n")), "{name}");
        for edge in edges {
            let bucket = format!("le=\"{edge}\"");
            assert!(
                text.lines().any(|l| l.starts_with(&format!("{name}_bucket")) && l.contains(&bucket)),
                "{name} {bucket}"
            );
        }
    }
    assert!(!text.contains("quantile="), "no summaries");
    let metrics = recorded.metrics();
    let below = |edge: &str| metrics.value(&format!("{HOLD_DURATION}_bucket"), &[("le", edge)]);
    let counts = ["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30", "120", "300", "+Inf"].map(below);
    assert_eq!(counts, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    let sum = metrics.value(&format!("{HOLD_DURATION}_sum"), &[]);
    assert!((201.0..201.2).contains(&sum), "{sum} s");
    let margins = metrics.value(&format!("{RENEWAL_MARGIN}_count"), &[]);
    assert!(margins > 150.0 && metrics.value(&format!("{RENEWAL_MARGIN}_bucket"), &[("le", "0.6")]) == 0.0);
}

// B75
#[tokio::test(start_paused = true)]
async fn the_number_of_series_does_not_grow_with_keys_paths_methods_or_error_texts() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let service =
        LockLayer::new(orders(&store), by_path).layer(service_fn(|_: Request<TestBody>| async { done() }));
    send(&service, post("/warm-up")).await;
    let series = recorded.metrics().series();
    for number in 0..2000 {
        let method = http::Method::from_bytes(format!("M{number}").as_bytes()).unwrap();
        send(&service, request(method, &format!("/orders/{number}"))).await;
    }
    for kind in [StoreErrorKind::Connect, StoreErrorKind::Server, StoreErrorKind::OutOfMemory] {
        store.next(Op::Acquire, [Act::Fail(kind)]);
        assert_eq!(send(&service, post("/k")).await.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(recorded.metrics().series(), series);
    assert_eq!(recorded.sum(STORE_ERRORS, &[("operation", "acquire")]), 3.0);
    let text = recorded.text();
    assert!(!text.contains("/orders") && !text.contains("script"), "no key and no text of an error");
}

// B81
#[tokio::test(start_paused = true)]
async fn odd_names_of_locks_do_not_break_the_scrape() {
    let recorded = Recorded::start();
    let odd = "a \"b\" \\ c\nd {e} 🔒";
    let locker = orders(&ScriptedStore::new()).with_name(odd);
    locker.acquire(&key("k")).await.unwrap().release().await.unwrap();
    let text = recorded.text();
    let metrics = Metrics::parse(&text);
    assert_eq!(metrics.value(ACQUISITIONS, &[("lock", odd), ("outcome", "acquired")]), 1.0);
    assert!(!text.contains("_total_total") && !text.contains("_seconds_seconds"));
    for (name, _, _) in CATALOGUE {
        for word in ["TYPE", "HELP"] {
            let lines = text.lines().filter(|line| line.starts_with(&format!("# {word} {name} "))).count();
            assert_eq!(lines, 1, "# {word} {name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_the_same_whatever_naming_the_exporter_recommends() {
    let mut scrapes = Vec::new();
    for recommended in [false, true] {
        let builder = PrometheusBuilder::new().with_recommended_naming(recommended);
        let recorder = Box::leak(Box::new(with_buckets(builder).unwrap().build_recorder()));
        let _recording = set_default_local_recorder(&*recorder);
        orders(&ScriptedStore::new()).register_metrics();
        let text = recorder.handle().render();
        scrapes.push(text.lines().map(str::to_owned).collect::<BTreeSet<_>>());
    }
    assert_eq!(scrapes[0], scrapes[1]);
}

// B83
#[tokio::test]
async fn an_event_is_seen_after_the_exporter_forgot_its_idle_series() {
    let builder = PrometheusBuilder::new().idle_timeout(MetricKindMask::ALL, Some(ms(50)));
    let recorder = Box::leak(Box::new(with_buckets(builder).unwrap().build_recorder()));
    let handle = recorder.handle();
    let _recording = set_default_local_recorder(&*recorder);
    let locker = orders(&ScriptedStore::new());
    let held = locker.acquire(&key("held")).await.unwrap();
    eventually("the series to be forgotten", secs(10), async || !handle.render().contains(HELD)).await;
    locker.acquire(&key("k")).await.unwrap().release().await.unwrap();
    let metrics = Metrics::parse(&handle.render());
    assert_eq!(metrics.sum(ACQUISITIONS, &[("outcome", "acquired")]), 1.0, "the event after the gap");
    held.release().await.unwrap();
    let held = Metrics::parse(&handle.render()).sum(HELD, &[]);
    assert_eq!(held, 0.0, "and no gauge below zero");
}

#[tokio::test(start_paused = true)]
async fn the_metrics_service_answers_with_the_scrape() {
    let recorder = Box::leak(Box::new(with_buckets(PrometheusBuilder::new()).unwrap().build_recorder()));
    let handle = recorder.handle();
    let _recording = set_default_local_recorder(&*recorder);
    orders(&ScriptedStore::new()).register_metrics();
    let response = MetricsService::new(handle).oneshot(post("/metrics")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let metrics = Metrics::parse(std::str::from_utf8(&body).unwrap());
    assert_eq!(metrics.value(BUILD_INFO, &[]), 1.0);
}

/// A run in which everything happens: acquisitions that win, wait, fail and are dropped; locks that are
/// released, dropped and lost.
#[tokio::test(start_paused = true)]
async fn sums_add_up_after_a_run_in_which_everything_happens() {
    const ACQUISITIONS_STARTED: usize = 600;
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locker = locker(store.clone(), quick().max_wait(secs(2)).max_waiters(3, 100));
    let mut random = fastrand::Rng::with_seed(7);
    let mut running = Vec::new();
    for number in 0..ACQUISITIONS_STARTED {
        let (locker, store) = (locker.clone(), store.clone());
        let name = key(&format!("k{}", random.u8(0..40)));
        let (fate, pause) = (random.u8(0..10), ms(random.u64(0..1500)));
        if number % 9 == 0 {
            let acts =
                [Act::Fail(StoreErrorKind::Connect), Act::LoseReply, Act::Hang, Act::LateReply(ms(100))];
            let op = [Op::Acquire, Op::Renew, Op::Release, Op::HandOver][random.usize(0..4)];
            store.next(op, [acts[random.usize(0..4)]]);
        }
        let task = Running::start(async move {
            let Ok(guard) = locker.acquire(&name).await else { return };
            sleep(pause).await;
            match fate {
                0 => drop(guard),
                // Taken away; noticed while it is held, or at the release.
                1 | 2 if guard.held().is_held() => {
                    store.delete_any(&name);
                    if fate == 1 {
                        sleep(secs(4)).await;
                    }
                    drop(guard.release().await);
                }
                3 => {
                    let _cut_short = tokio::time::timeout(ms(0), guard.release()).await;
                }
                _ => drop(guard.release().await),
            }
        });
        running.push(task);
        sleep(ms(random.u64(0..20))).await;
        if random.u8(0..12) == 0 {
            let index = random.usize(0..running.len());
            drop(running.swap_remove(index));
        }
    }
    for task in running {
        task.end().await;
    }
    // The last hand-overs, clean-ups and losses.
    sleep(secs(10)).await;
    recorded.check_settled(ACQUISITIONS_STARTED).await;
    let metrics = recorded.metrics();
    for (name, label) in [(ACQUISITIONS, "outcome"), (RELEASES, "outcome")] {
        let values = CATALOGUE.iter().find(|entry| entry.0 == name).unwrap().2[1].1;
        let seen = values.iter().filter(|value| metrics.sum(name, &[(label, **value)]) > 0.0).count();
        assert!(seen >= 4, "a run that shows too little: {:?}", metrics.non_zero(name));
    }
    for (counter, histogram) in
        [(ACQUISITIONS, ACQUIRE_DURATION), (ACQUISITIONS, ACQUIRE_ATTEMPTS), (RELEASES, HOLD_DURATION)]
    {
        assert_eq!(metrics.sum(counter, &[]), metrics.sum(&format!("{histogram}_count"), &[]), "{histogram}");
    }
    assert_eq!(metrics.sum(LOST, &[]), recorded.releases("skipped"));
    assert!(metrics.sum(CONTENTION, &[]) <= metrics.sum(ACQUISITIONS, &[]));
    assert_eq!(
        metrics.sum(RENEWALS, &[("outcome", "renewed")]),
        metrics.sum(&format!("{RENEWAL_MARGIN}_count"), &[])
    );
    eventually("no lock to be left", secs(5), async || store.memory().is_empty()).await;
}

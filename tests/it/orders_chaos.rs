//! Three services on one Redis, twenty orders, and one fault after the other from a seed.
//!
//! `CHAOS_SECONDS` (default 20) says for how long, `CHAOS_SEED` repeats the faults of an earlier run.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;

use crate::support::eventually::{eventually, ms, secs};
use crate::support::orders_process::{Orders, RunningOrders, ship_path};
use crate::support::overlap::{Holding, check_exclusive};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use crate::support::running::Load;
use crate::support::settled::{check_no_orphans, check_settled};

const TTL: Duration = ms(600);
const INSTANCES: usize = 3;
const CLIENTS: usize = 6;
const ORDERS: u64 = 20;

/// Everything that goes wrong, and how often each is chosen.
const FAULTS: [(Fault, u32); 10] = [
    (Fault::KillProcess, 1),
    (Fault::PauseProcess, 2),
    (Fault::CutOff, 2),
    (Fault::SlowReplies, 2),
    (Fault::SlowCommands, 2),
    (Fault::CloseConnections, 2),
    (Fault::SwallowReplies, 3),
    (Fault::FlushScripts, 2),
    (Fault::PauseRedis, 1),
    (Fault::RestartRedisEmpty, 1),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillProcess,
    PauseProcess,
    CutOff,
    SlowReplies,
    SlowCommands,
    CloseConnections,
    SwallowReplies,
    FlushScripts,
    PauseRedis,
    RestartRedisEmpty,
}

/// One service behind a proxy of its own, and those who use it.
struct Instance {
    proxy: Proxy,
    orders: RunningOrders,
    load: Option<Load>,
}

impl Instance {
    async fn start(redis: &RedisServer) -> Self {
        let proxy = Proxy::to(redis.addr()).await;
        let (orders, load) = serve(&proxy).await;
        Self { proxy, orders, load: Some(load) }
    }

    async fn stop_load(&mut self) -> Vec<Holding> {
        let answers = self.load.take().expect("a load is stopped once").stop().await;
        let served = answers.iter().flatten().filter(|answer| answer.status == StatusCode::OK);
        served.map(|answer| answer.shipped()).collect()
    }
}

async fn serve(proxy: &Proxy) -> (RunningOrders, Load) {
    let orders = Orders::at(&proxy.url()).ttl("600ms").max_wait("1s").start().await;
    let load = Load::start(&orders.http, CLIENTS, |_client, _round| {
        // Most are short, some need renewals.
        let work = if fastrand::u8(..) < 200 { fastrand::u64(..60) } else { fastrand::u64(..1200) };
        ship_path(&format!("o{}", fastrand::u64(..ORDERS)), work)
    });
    (orders, load)
}

struct Chaos {
    redis: RedisServer,
    instances: Vec<Instance>,
    random: fastrand::Rng,
    holdings: Vec<Holding>,
    /// From the kill of a Redis to the last moment at which a holder may not have noticed.
    amnesia_us: Vec<(u64, u64)>,
    done: BTreeMap<Fault, usize>,
}

impl Chaos {
    async fn strike(&mut self) {
        let fault = self.choose();
        *self.done.entry(fault).or_default() += 1;
        let span = TTL.mul_f64(0.1 + 1.9 * self.random.f64());
        let instance = &mut self.instances[self.random.usize(..INSTANCES)];
        match fault {
            Fault::KillProcess => {
                instance.orders.kill();
                self.holdings.extend(instance.stop_load().await);
                let (orders, load) = serve(&instance.proxy).await;
                (instance.orders, instance.load) = (orders, Some(load));
            }
            Fault::PauseProcess => {
                instance.orders.pause().await;
                tokio::time::sleep(span).await;
                instance.orders.resume();
            }
            Fault::CutOff => {
                instance.proxy.freeze();
                tokio::time::sleep(span).await;
                instance.proxy.unfreeze();
            }
            Fault::SlowReplies => {
                instance.proxy.delay_replies(span / 4);
                tokio::time::sleep(span).await;
                instance.proxy.delay_replies(ms(0));
            }
            Fault::SlowCommands => {
                instance.proxy.delay_commands(span / 4);
                tokio::time::sleep(span).await;
                instance.proxy.delay_commands(ms(0));
            }
            Fault::CloseConnections => instance.proxy.close_all(),
            Fault::SwallowReplies => instance.proxy.swallow(self.random.usize(1..5)),
            Fault::FlushScripts => {
                let () = self.redis.command(&["SCRIPT", "FLUSH"]).await;
            }
            Fault::PauseRedis => {
                self.redis.pause().await;
                tokio::time::sleep(span).await;
                self.redis.resume();
            }
            Fault::RestartRedisEmpty => {
                let killed = now_us();
                self.redis.restart().await;
                self.amnesia_us.push((killed, now_us() + TTL.as_micros() as u64));
            }
        }
    }

    fn choose(&mut self) -> Fault {
        let all: u32 = FAULTS.iter().map(|(_fault, weight)| weight).sum();
        let mut left = self.random.u32(..all);
        for (fault, weight) in FAULTS {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return fault,
            }
        }
        unreachable!("less than the sum of all weights")
    }

    /// A Redis that has lost its data cannot keep anybody out: those times promise nothing.
    fn under_promise(&self) -> Vec<Holding> {
        let forgotten = |holding: &Holding| {
            let mut times = self.amnesia_us.iter();
            times.any(|(from, to)| holding.end_us >= *from && holding.start_us <= *to)
        };
        self.holdings.iter().filter(|holding| !forgotten(holding)).cloned().collect()
    }
}

/// Also when the test passes, which is when its output is not shown.
fn say(line: &str) {
    let _no_terminal = writeln!(std::io::stderr(), "chaos: {line}");
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    u64::try_from(since.as_micros()).expect("a time before the year 500000")
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text:?}")))
}

#[tokio::test]
async fn one_fault_after_the_other_never_lets_two_in_together() {
    let seed = number_from("CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = secs(number_from("CHAOS_SECONDS").unwrap_or(20));
    say(&format!("CHAOS_SEED={seed} for {time:?}"));
    let redis = RedisServer::start().await;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(Instance::start(&redis).await);
    }
    let random = fastrand::Rng::with_seed(seed);
    let mut chaos =
        Chaos { redis, instances, random, holdings: vec![], amnesia_us: vec![], done: BTreeMap::new() };

    let end = now_us() + time.as_micros() as u64;
    while now_us() < end {
        chaos.strike().await;
        tokio::time::sleep(ms(chaos.random.u64(20..250))).await;
    }
    let mut instances = std::mem::take(&mut chaos.instances);
    for instance in &mut instances {
        chaos.holdings.extend(instance.stop_load().await);
    }

    let judged = chaos.under_promise();
    let (shipments, faults) = (chaos.holdings.len(), chaos.done.values().sum::<usize>());
    say(&format!("{shipments} shipments, {} judged, under {faults} faults: {:?}", judged.len(), chaos.done));
    check_exclusive(&judged);
    assert!(judged.len() > 50, "too little was served to tell anything");
    for instance in &instances {
        // What was to be swallowed and was not is nobody's loss any more.
        eventually("a request to be served again", secs(20), async || {
            instance.orders.ship("last", 0).await.status == StatusCode::OK
        })
        .await;
        check_settled(&instance.orders, None).await;
    }
    check_no_orphans(&chaos.redis, TTL).await;
}

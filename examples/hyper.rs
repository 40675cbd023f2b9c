//! The layer around a plain hyper service, without a framework.
//!
//! `cargo run --example hyper`, then twice at the same time:
//! `curl -i -X POST http://127.0.0.1:3000/accounts -H 'x-account: acme'`. A server of one's own also chooses
//! what it does about a client that closes its sending side: see `half_close`.

#![allow(clippy::print_stdout, missing_docs, reason = "a program, not a library")]
#![allow(clippy::disallowed_methods, reason = "a program has tasks of its own")]

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn};
use tower_redis_lock::{HeaderKey, HeldLock, LockLayer, LockSettings, Locker, MemoryStore};

async fn work(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let text = match request.extensions().get::<HeldLock>() {
        Some(held) => format!("done under {}, {:?} left\n", held.key(), held.remaining()),
        None => "done without a lock\n".to_owned(),
    };
    Ok(Response::new(Full::from(text)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let settings = LockSettings::builder().max_wait(Duration::from_millis(500)).build()?;
    let locker = Locker::builder(MemoryStore::new()).prefix("accounts:").settings(settings).build()?;
    let locks = LockLayer::new(locker, HeaderKey::new("x-account")?).methods([Method::POST]);
    let service = TowerToHyperService::new(ServiceBuilder::new().layer(locks).service(service_fn(work)));

    let mut server = auto::Builder::new(TokioExecutor::new());
    // A client that closes its sending side after the request (`nc -N`) still waits for its answer. Without
    // this, hyper takes it for gone and drops the handler. The price: a client that really is gone is
    // noticed only when the answer is written.
    server.http1().half_close(true);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let (server, service) = (server.clone(), service.clone());
        tokio::spawn(async move {
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                println!("connection: {error}");
            }
        });
    }
}

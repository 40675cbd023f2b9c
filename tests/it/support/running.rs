//! Things that go on while the test does something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, StatusCode};
use tokio::task::JoinHandle;

use super::http::{Answer, HttpClient};

/// Something under way. Dropping it stops it at once; a request hangs up.
#[derive(Debug)]
pub(crate) struct Running<T>(JoinHandle<T>);

impl<T: Send + 'static> Running<T> {
    /// Starts it.
    pub(crate) fn start(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Running<T> {
    /// Waits for its end.
    pub(crate) async fn end(mut self) -> T {
        match (&mut self.0).await {
            Ok(value) => value,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Whether it has ended already.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for the ends of all, in their order.
pub(crate) async fn ends<T>(all: Vec<Running<T>>) -> Vec<T> {
    let mut results = Vec::with_capacity(all.len());
    for running in all {
        results.push(running.end().await);
    }
    results
}

/// Several clients that send requests one after the other until they are stopped.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<Running<Vec<Result<Answer, String>>>>,
}

impl Load {
    /// Starts `clients` clients. `path` gives what a client posts to in its nth round.
    pub(crate) fn start(
        http: &HttpClient,
        clients: usize,
        path: impl Fn(usize, usize) -> String + Clone + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |number: usize| {
            let (http, stop, path) = (http.clone(), Arc::clone(&stop), path.clone());
            Running::start(async move {
                let mut answers = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    answers.push(http.send(Method::POST, &path(number, answers.len())).await);
                }
                answers
            })
        };
        let clients = (0..clients).map(client).collect();
        Self { stop, clients }
    }

    /// Lets each client finish its request, and gives what all of them got.
    pub(crate) async fn stop(self) -> Vec<Result<Answer, String>> {
        self.stop.store(true, Ordering::Relaxed);
        ends(self.clients).await.into_iter().flatten().collect()
    }
}

/// How many answers have a status.
pub(crate) fn count(answers: &[Answer], status: StatusCode) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

//! Clients that misbehave on the level of TCP: they hang up, reset, or close one side only.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::eventually::{secs, within};

/// A connection on which one HTTP/1.1 request was sent.
#[derive(Debug)]
pub(crate) struct RawRequest(TcpStream);

impl RawRequest {
    /// Sends the head of a request without a body.
    pub(crate) async fn send(server: SocketAddr, method: &str, path: &str) -> Self {
        let mut stream = TcpStream::connect(server).await.expect("the server listens");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: orders\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("the server reads");
        Self(stream)
    }

    /// Closes the connection in good order (FIN).
    pub(crate) fn hang_up(self) {
        drop(self.0);
    }

    /// Tears the connection down (RST).
    pub(crate) fn reset(self) {
        self.0.set_zero_linger().expect("SO_LINGER can be set");
        drop(self.0);
    }

    /// Closes the sending side only, and gives what the server still sends until it closes too.
    pub(crate) async fn close_sending_side(mut self) -> String {
        self.0.shutdown().await.expect("a connection to shut down");
        let mut rest = Vec::new();
        let read = within("the server to close", secs(60), self.0.read_to_end(&mut rest)).await;
        read.expect("a server that closes in good order");
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// Reads until the server has sent this text, and leaves the connection open.
    pub(crate) async fn read_until(&mut self, text: &str) {
        let mut seen = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&seen).contains(text) {
                let more = self.0.read_buf(&mut seen).await.expect("a readable connection");
                assert_ne!(more, 0, "closed before {text:?} came: {seen:?}");
            }
        };
        within("the server to send", secs(60), read).await;
    }
}

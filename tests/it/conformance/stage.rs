//! The setup of a test case: its own mock, and for half of the cases a proxy in front of it.

use std::net::SocketAddr;
use std::time::Duration;

use mock::Handle;
use tokio::time::Instant;

use super::ask::Ask;
use super::expect::Expect;
use crate::support::{Proxy, raw, upstream};

/// The side under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Mock,
    Proxy,
}

/// A new mock, and the proxy if it is the side under test.
pub struct Stage {
    pub mock: Handle,
    proxy: Option<Proxy>,
}

/// Everything that was received for one request.
pub struct Came {
    pub bytes: Vec<u8>,
    pub is_head: bool,
    pub took: Duration,
    /// Number of requests that the proxy has sent upstream. `None` if the mock was requested directly.
    pub sent_on: Option<u64>,
}

impl Stage {
    pub async fn set(side: Side) -> Self {
        let mock = upstream().await;
        let proxy = match side {
            Side::Mock => None,
            Side::Proxy => Some(Proxy::start(mock.addr()).await),
        };
        Self { mock, proxy }
    }

    pub fn addr(&self) -> SocketAddr {
        self.proxy.as_ref().map_or_else(|| self.mock.addr(), |proxy| proxy.addr)
    }

    /// Sends one request, and counts its upstream requests.
    pub async fn ask(&self, ask: &Ask) -> Came {
        self.mock.reset_counters();
        self.send(ask).await
    }

    /// Sends one request on a connection of its own, and reads until the connection ends.
    pub async fn send(&self, ask: &Ask) -> Came {
        let asked = Instant::now();
        let bytes = raw(self.addr(), ask.bytes()).await;
        let sent_on = self.proxy.as_ref().map(|_| self.mock.requests());
        Came { bytes, is_head: ask.is_head(), took: asked.elapsed(), sent_on }
    }

    /// The status of a response, without checks of the rest.
    pub async fn status(&self, ask: &Ask) -> Option<u16> {
        self.send(ask).await.answer().map(|answer| answer.status)
    }

    /// Sends a request, and compares the response.
    pub async fn problems(&self, ask: &Ask, expect: &Expect) -> Vec<String> {
        let mut came = self.ask(ask).await;
        // A busy computer may be late once.
        if expect.is_late(&came) {
            came = self.ask(ask).await;
        }
        expect.problems(&came)
    }

    /// The body of a response, which must be a plain 200.
    pub async fn body(&self, ask: &Ask) -> String {
        let came = self.ask(ask).await;
        let answer = came.answer().expect("an answer");
        assert_eq!(answer.status, 200, "{}: {}", ask.title(), answer.body);
        answer.body
    }

    pub async fn clear(self) {
        if let Some(proxy) = self.proxy {
            proxy.stop().await;
        }
        self.mock.stop().await;
    }
}

//! Numbers of revocation lists. Whoever takes a connection tells them, before its answer, to whoever opened it. Only
//! the opener acts: it may be that only one of the two hosts can reach the other.

use std::sync::Arc;

use linerate_wire::frame::ListNumber;

use crate::tcp::connect::Route;
use linerate_lock::Mutex;

/// What a host has, and what becomes of what others have.
pub trait ListExchange: Send + Sync {
    /// The list of each authority that this host trusts.
    fn numbers(&self) -> Vec<ListNumber>;

    /// The other end of a connection that this host opened has these. Called while the connection is made: it must not
    /// wait.
    fn peer_lists_known(&self, route: &Route, numbers: &[ListNumber]);
}

/// See the module. Without an exchange no list is sent, and none that comes is read.
#[derive(Default)]
pub(crate) struct Lists {
    exchange: Mutex<Option<Arc<dyn ListExchange>>>,
}

impl Lists {
    pub fn set(&self, exchange: Arc<dyn ListExchange>) {
        *self.exchange.lock() = Some(exchange);
    }

    fn exchange(&self) -> Option<Arc<dyn ListExchange>> {
        self.exchange.lock().clone()
    }

    pub fn numbers(&self) -> Vec<ListNumber> {
        self.exchange().map(|exchange| exchange.numbers()).unwrap_or_default()
    }

    pub fn peer_lists_known(&self, route: &Route, numbers: &[ListNumber]) {
        if let Some(exchange) = self.exchange() {
            exchange.peer_lists_known(route, numbers);
        }
    }
}

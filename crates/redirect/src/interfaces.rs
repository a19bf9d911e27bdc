//! The interfaces of this network namespace, and its routes.

use std::io;

use base::links::{self, Link};
use base::routes::{self, Route};

pub(super) fn links() -> io::Result<Vec<Link>> {
    #[cfg(test)]
    if let Some(links) = super::fake::links() {
        return Ok(links);
    }
    links::list()
}

pub(super) fn routes() -> io::Result<Vec<Route>> {
    #[cfg(test)]
    if let Some(routes) = super::fake::routes() {
        return routes;
    }
    routes::list()
}

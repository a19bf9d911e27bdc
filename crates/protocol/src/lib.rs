//! Everything that a verdict depends on: the request ([`metadata`]) and the policy ([`policy`]). No tokio, no socket
//! and no clock: the same request under the same policy always has the same verdict.

pub mod metadata;
pub mod policy;
#[cfg(test)]
#[expect(unreachable_pub, reason = "the tests' own")]
#[path = "../../../tests/support/switch.rs"]
mod switch;

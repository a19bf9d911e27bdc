//! Cost of a request on a kept-alive connection over an in-memory pipe: with hyper alone, and with hyper and
//! the whole stack. The difference is the stack's cost. The kernel's cost is not included.

mod support;

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http_body_util::Full;
use hyper::service::service_fn;
use support::Pipe;

/// As long as a token response.
const BODY: Bytes = Bytes::from_static(&[b'x'; 250]);

fn keep_alive(criterion: &mut Criterion) {
    let runtime = support::runtime();
    let _entered = runtime.enter();
    let stack = runtime.block_on(support::stack());
    let bare = service_fn(|_| ready(Ok::<_, Infallible>(http::Response::new(Full::new(BODY)))));
    let pipes = [
        ("bare_hyper", Pipe::to(bare, support::TOKEN)),
        ("token_hit", Pipe::to_stack(stack.clone(), support::TOKEN)),
        ("known_leaf", Pipe::to_stack(stack, support::ZONE)),
    ];
    let mut group = criterion.benchmark_group("keep_alive");
    for (name, mut pipe) in pipes {
        group.bench_function(name, |bencher| bencher.iter(|| runtime.block_on(pipe.exchange())));
    }
    group.finish();
}

criterion_group!(benches, keep_alive);
criterion_main!(benches);

//! Cost of a request through the whole stack, without a connection.

mod support;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tower::Service;

fn whole_stack(criterion: &mut Criterion) {
    let runtime = support::runtime();
    let mut stack = runtime.block_on(support::stack());
    let _entered = runtime.enter();
    let mut group = criterion.benchmark_group("whole_stack");
    for (name, target) in
        [("known_leaf", support::ZONE), ("token_hit", support::TOKEN), ("ping", "/"), ("concealed", support::KUBE_ENV)]
    {
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || support::request(target),
                |request| support::now(black_box(stack.call(request))),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, whole_stack);
criterion_main!(benches);

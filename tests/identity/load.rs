//! Pods that repeat requests while a test does something else.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crate::pod::Pod;

/// Clients in pods. They are told to end when this is dropped, also if the test fails: they would disturb the next ones.
pub struct Load<T> {
    clients: Vec<JoinHandle<T>>,
    is_over: Arc<AtomicBool>,
}

impl<T: Default + Send + 'static> Load<T> {
    /// Begins to repeat each pod's request, which notes its answer. Each pod has notes of its own.
    pub fn begin<'a, C>(clients: impl IntoIterator<Item = (&'a Arc<Pod>, C)>) -> Self
    where
        C: FnMut(&Pod, &mut T) + Send + 'static,
    {
        let is_over = Arc::<AtomicBool>::default();
        let begin = |(pod, mut ask): (&Arc<Pod>, C)| {
            let is_over = Arc::clone(&is_over);
            pod.spawn(move |pod| {
                let mut answers = T::default();
                while !is_over.load(Relaxed) {
                    ask(pod, &mut answers);
                }
                answers
            })
        };
        Self { clients: clients.into_iter().map(begin).collect(), is_over }
    }

    /// Ends the clients, and returns each pod's answers.
    pub fn end(mut self) -> Vec<T> {
        self.is_over.store(true, Relaxed);
        mem::take(&mut self.clients).into_iter().map(|client| client.join().expect("no panic")).collect()
    }
}

impl<T> Drop for Load<T> {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

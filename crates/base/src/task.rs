//! Tasks that belong together. A component is more than the future it was started with: watches, queues and workers run
//! in tasks of their own, and one that panics leaves the component dead without anybody noticing. Tasks started with
//! [`spawn`] belong to the [`Scope`] of whoever starts them: a panic in any of them fails the scope, and all of them
//! end with it.
//!
//! `tokio::spawn` stays right for what concerns one request or connection only.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};

use crate::BoxFuture;

tokio::task_local! {
    static CURRENT: Scope;
}

/// Starts a task in the scope of the present one. Without a scope it is a task like any other.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    // Boxed here, so that what follows is compiled once for each output and not for each future.
    spawn_boxed(Box::pin(future))
}

fn spawn_boxed<T: Send + 'static>(future: BoxFuture<'static, T>) -> JoinHandle<T> {
    match CURRENT.try_with(Scope::clone) {
        Ok(scope) => scope.spawn_boxed(future),
        Err(_) => tokio::spawn(future),
    }
}

/// The future as a member of the present scope, for those who keep their tasks themselves (in a `JoinSet`) and abort
/// them by dropping it.
pub fn in_scope<F>(future: F) -> BoxFuture<'static, F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match CURRENT.try_with(Scope::clone) {
        Ok(scope) => Box::pin(scope.member(Box::pin(future)).1),
        Err(_) => Box::pin(future),
    }
}

/// The component that the present task belongs to, if it has a name.
pub fn current_component() -> Option<&'static str> {
    CURRENT.try_with(|scope| scope.0.component).ok().flatten()
}

/// A task panicked with this message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(pub String);

/// Runs a future in a scope of its own, until it is over or one of its tasks panics.
pub async fn guard<T>(future: impl Future<Output = T>) -> Result<T, Panicked> {
    let scope = Scope::new(current_component());
    let ended = tokio::select! {
        done = CURRENT.scope(scope.clone(), future) => Ok(done),
        message = scope.failed() => Err(Panicked(message)),
    };
    scope.abort();
    ended
}

/// Tasks that end together. Clones are the same scope.
#[derive(Clone, Default)]
pub struct Scope(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Whose tasks they are.
    component: Option<&'static str>,
    members: Mutex<HashMap<u64, Entry>>,
    next: AtomicU64,
    failed: watch::Sender<Option<String>>,
    aborted: AtomicBool,
    left: Notify,
}

struct Entry {
    polls: Arc<AtomicU64>,
    abort: Option<AbortHandle>,
    watched: Watched,
}

/// What is known of a member's progress, from one look to the next.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    polls: u64,
    looks: u32,
}

impl Watched {
    /// How many looks in a row found the member inside the same poll. The count of polls begun and ended is odd inside.
    fn look(self, polls: u64) -> Watched {
        let same = polls % 2 == 1 && polls == self.polls;
        Watched {
            polls,
            looks: if same { self.looks + 1 } else { 0 },
        }
    }
}

impl Scope {
    /// A scope for the tasks of a component.
    pub fn of_component(name: &'static str) -> Scope {
        Scope::new(Some(name))
    }

    fn new(component: Option<&'static str>) -> Scope {
        Scope(Arc::new(Shared {
            component,
            ..Shared::default()
        }))
    }

    /// Calls a function as if a member did: what it logs is the component's.
    pub fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), call)
    }

    /// As [`spawn`], but into this scope whoever calls.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_boxed(Box::pin(future))
    }

    fn spawn_boxed<T: Send + 'static>(&self, future: BoxFuture<'static, T>) -> JoinHandle<T> {
        let (id, member) = self.member(future);
        let handle = tokio::spawn(member);
        // Unless it is over already.
        if let Some(entry) = self.0.members.lock().get_mut(&id) {
            entry.abort = Some(handle.abort_handle());
        }
        if self.0.aborted.load(Ordering::SeqCst) {
            handle.abort();
        }
        handle
    }

    fn member<T>(&self, future: BoxFuture<'static, T>) -> (u64, Member<T>) {
        let (id, polls) = (self.0.next.fetch_add(1, Ordering::Relaxed), Arc::default());
        let entry = Entry {
            polls: Arc::clone(&polls),
            abort: None,
            watched: Watched::default(),
        };
        self.0.members.lock().insert(id, entry);
        let member = Member {
            future: Box::pin(CURRENT.scope(self.clone(), future)),
            polls,
            place: ScopeMembership {
                scope: self.clone(),
                id,
            },
        };
        (id, member)
    }

    /// Waits until a member panics, and gives what it said. At once if one has.
    pub async fn failed(&self) -> String {
        let mut failed = self.0.failed.subscribe();
        let message = failed.wait_for(Option::is_some).await;
        // The sender lives in self, so there is always a message here.
        message.ok().and_then(|m| m.clone()).unwrap_or_default()
    }

    /// Ends all members at their next await, and those that they start meanwhile.
    pub fn abort(&self) {
        self.0.aborted.store(true, Ordering::SeqCst);
        let handles: Vec<AbortHandle> = self.0.members.lock().values().filter_map(|m| m.abort.clone()).collect();
        handles.iter().for_each(AbortHandle::abort);
    }

    /// Waits until no member is left.
    pub async fn emptied(&self) {
        loop {
            let left = self.0.left.notified();
            if self.0.members.lock().is_empty() {
                return;
            }
            left.await;
        }
    }

    /// The most looks in a row, this one included, that found a member inside one and the same poll: it blocks its
    /// thread, or loops without end. To be called at a steady pace.
    pub fn longest_poll(&self) -> u32 {
        let mut members = self.0.members.lock();
        let looks = members.values_mut().map(|member| {
            member.watched = member.watched.look(member.polls.load(Ordering::Relaxed));
            member.watched.looks
        });
        looks.max().unwrap_or(0)
    }
}

/// A member's place in its scope, given up when the member is over or dropped.
struct ScopeMembership {
    scope: Scope,
    id: u64,
}

impl Drop for ScopeMembership {
    fn drop(&mut self) {
        let shared = &self.scope.0;
        let entry = shared.members.lock().remove(&self.id);
        drop(entry);
        shared.left.notify_waiters();
    }
}

struct Member<T> {
    // Before the place: what the future holds is gone when the scope is empty.
    future: Pin<Box<tokio::task::futures::TaskLocalFuture<Scope, BoxFuture<'static, T>>>>,
    polls: Arc<AtomicU64>,
    place: ScopeMembership,
}

impl<T> Future for Member<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.polls.fetch_add(1, Ordering::Relaxed);
        let polled = catch_unwind(AssertUnwindSafe(|| this.future.as_mut().poll(context)));
        this.polls.fetch_add(1, Ordering::Relaxed);
        match polled {
            Ok(polled) => polled,
            Err(panic) => {
                let message = panic_message(&*panic);
                let failed = &this.place.scope.0.failed;
                failed.send_if_modified(|first| first.is_none().then(|| *first = Some(message)).is_some());
                resume_unwind(panic)
            }
        }
    }
}

/// What a panic said, if it said so in words.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_task_of_a_task_fails_the_scope_and_ends_the_others() {
        let scope = Scope::default();
        let other = scope.spawn(std::future::pending::<()>());
        let main = scope.spawn(async {
            let inner = spawn(async {
                // Its handle is dropped: nobody would ever look.
                drop(spawn(async { panic!("inner {}", 7) }));
            });
            inner.await.unwrap();
            std::future::pending::<()>().await;
        });
        assert_eq!(scope.failed().await, "inner 7");
        scope.abort();
        scope.emptied().await;
        assert!(
            scope
                .spawn(std::future::pending::<()>())
                .await
                .unwrap_err()
                .is_cancelled()
        );
        assert!(other.await.unwrap_err().is_cancelled());
        assert!(main.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn members_leave_when_they_are_over() {
        let scope = Scope::default();
        let tasks: Vec<_> = (0..100).map(|n| scope.spawn(async move { n })).collect();
        let mut set = tokio::task::JoinSet::new();
        scope.spawn(async { in_scope(async {}).await }).await.unwrap();
        set.spawn(CURRENT.scope(scope.clone(), async { in_scope(std::future::pending::<()>()).await }));
        tokio::task::yield_now().await;
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), n);
        }
        assert_eq!(scope.0.members.lock().len(), 1);
        drop(set);
        scope.emptied().await;
    }

    #[tokio::test]
    async fn tasks_know_their_component() {
        let scope = Scope::of_component("scheduler");
        let inner = scope.spawn(async { guard(async { spawn(async { current_component() }).await }).await });
        assert_eq!(inner.await.unwrap().unwrap().unwrap(), Some("scheduler"));
        assert_eq!(scope.enter(current_component), Some("scheduler"));
        assert_eq!(current_component(), None);
        assert_eq!(Scope::default().enter(current_component), None);
    }

    #[tokio::test]
    async fn guarded_futures_end_with_their_tasks() {
        assert_eq!(guard(async { 1 }).await, Ok(1));
        let broken = guard(async {
            spawn(async { panic!("gone") });
            std::future::pending::<()>().await;
        });
        assert_eq!(broken.await, Err(Panicked("gone".to_string())));
        // Outside of any scope a task is only a task.
        assert!(spawn(async { panic!("alone") }).await.is_err());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_poll_that_does_not_end_is_seen() {
        let scope = Scope::default();
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let waiting = scope.spawn(std::future::pending::<()>());
        let blocking = scope.spawn(async move {
            let _ = blocked.recv();
        });
        while scope.longest_poll() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(release);
        blocking.await.unwrap();
        assert_eq!(scope.longest_poll(), 0);
        waiting.abort();
    }

    #[test]
    fn looks_count_only_inside_one_poll() {
        let looks = |polls: &[u64]| {
            let all = polls.iter().fold(Watched::default(), |w, p| w.look(*p));
            all.looks
        };
        assert_eq!(looks(&[1, 1, 1]), 2);
        assert_eq!(looks(&[1, 1, 3]), 0);
        assert_eq!(looks(&[2, 2, 2]), 0);
        assert_eq!(looks(&[1, 2, 3, 3]), 1);
    }
}

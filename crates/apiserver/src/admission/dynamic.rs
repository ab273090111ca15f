//! Dynamic admission: what users configure, webhooks and policies, compiled once for each state of their configurations.
//!
//! A write that nothing of it concerns costs a look at a counter for each kind of configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orlop_api::patch::apply as ownership;
use orlop_api::{Status, Value};
use orlop_base::clock::monotonic;
use parking_lot::RwLock;

use super::matching::is_exempt;
use super::metrics::{AdmissionMetrics, Step};
use super::policy::{self, Policy, PolicyRounds};
use super::webhook::{self, Webhook};
use super::{Operation, Review};
use crate::lookup::ObjectLookup;
use crate::webhook_client::WebhookClient;

/// What is made of all objects of some resources, for as long as none of them changes.
struct Compiled<T, const N: usize> {
    resources: [&'static str; N],
    current: RwLock<Option<([u64; N], Arc<T>)>>,
}

impl<T, const N: usize> Compiled<T, N> {
    fn of(resources: [&'static str; N]) -> Compiled<T, N> {
        Compiled {
            resources,
            current: RwLock::new(None),
        }
    }

    fn get(
        &self,
        lookup: &(dyn ObjectLookup + Sync),
        compile: impl FnOnce([&'static str; N], Option<&T>) -> T,
    ) -> Arc<T> {
        // Asked before the objects are read: what is read later than that is compiled once more, never too seldom.
        let generations = self.resources.map(|resource| lookup.generation(resource));
        if let Some((known, compiled)) = &*self.current.read()
            && *known == generations
        {
            return compiled.clone();
        }
        let before = self.current.read().as_ref().map(|(_, compiled)| compiled.clone());
        let compiled = Arc::new(compile(self.resources, before.as_deref()));
        *self.current.write() = Some((generations, compiled.clone()));
        compiled
    }
}

/// The state of dynamic admission. One for the whole server.
pub struct DynamicAdmission {
    is_paused: AtomicBool,
    pub(crate) client: WebhookClient,
    pub(crate) metrics: AdmissionMetrics,
    mutating_policies: Compiled<Vec<Policy>, 2>,
    mutating_webhooks: Compiled<Vec<Webhook>, 1>,
    validating_policies: Compiled<Vec<Policy>, 2>,
    validating_webhooks: Compiled<Vec<Webhook>, 1>,
}

impl Default for DynamicAdmission {
    fn default() -> DynamicAdmission {
        DynamicAdmission {
            is_paused: AtomicBool::new(false),
            client: WebhookClient::default(),
            metrics: AdmissionMetrics::default(),
            mutating_policies: Compiled::of(policy::MUTATING),
            mutating_webhooks: Compiled::of([webhook::MUTATING]),
            validating_policies: Compiled::of(policy::VALIDATING),
            validating_webhooks: Compiled::of([webhook::VALIDATING]),
        }
    }
}

impl DynamicAdmission {
    /// Asks nobody until it is resumed.
    pub(crate) fn pause(&self) {
        self.is_paused.store(true, Ordering::Release);
    }

    pub(crate) fn resume(&self) {
        self.is_paused.store(false, Ordering::Release);
    }

    fn is_exempt(&self, review: &Review<'_>) -> bool {
        is_exempt(review) || self.is_paused.load(Ordering::Acquire)
    }
}

/// What both rounds of the mutating half remember.
#[derive(Default)]
struct Rounds {
    policies: PolicyRounds,
    webhooks: webhook::Rounds,
}

/// Lets mutating policies, then mutating webhooks change the object; none there is on a delete. `built_in` runs the
/// built-in plugins once more, if something was changed after them; then whoever asked for it is called again.
pub(super) async fn mutate(
    review: &Review<'_>,
    mut object: Option<&mut Value>,
    old: Option<&Value>,
    built_in: impl Fn(&mut Value) -> Result<(), Status>,
) -> Result<(), Status> {
    let dynamic = review.dynamic;
    if dynamic.is_exempt(review) {
        return Ok(());
    }
    let compile = |resources: [&'static str; 2], before: Option<&Vec<Policy>>| {
        policy::compile(review.lookup, resources, before.map_or(&[], Vec::as_slice))
    };
    let policies = dynamic.mutating_policies.get(review.lookup, compile);
    let compile = |[resource]: [&'static str; 1], _: Option<&Vec<Webhook>>| webhook::compile(review.lookup, resource);
    let hooks = dynamic.mutating_webhooks.get(review.lookup, compile);
    if policies.is_empty() && hooks.is_empty() {
        return Ok(());
    }
    let owners = object.as_deref().map(ownership::owners_of);
    let mut rounds = Rounds::default();
    let round = mutate_once(review, &policies, &hooks, &mut rounds, 0, object.as_deref_mut(), old);
    if Box::pin(round).await?
        && let Some(object) = object.as_deref_mut()
    {
        built_in(object)?;
        Box::pin(mutate_once(
            review,
            &policies,
            &hooks,
            &mut rounds,
            1,
            Some(object),
            old,
        ))
        .await?;
    }
    if let (Some(object), Some(owners)) = (object, owners)
        && let Some(why) = ownership::restore_owners(object, owners)
    {
        review.warnings.add(format!(
            ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
             mutating admission controller; please fix your requests: {why}"
        ));
    }
    Ok(())
}

async fn mutate_once(
    review: &Review<'_>,
    policies: &[Policy],
    hooks: &[Webhook],
    rounds: &mut Rounds,
    round: u8,
    mut object: Option<&mut Value>,
    old: Option<&Value>,
) -> Result<bool, Status> {
    let mut changed = false;
    if let Some(object) = object.as_deref_mut().filter(|_| !policies.is_empty()) {
        changed |= timed(review, "MutatingAdmissionPolicy", Step::Admit, async {
            policy::mutate(review, policies, &mut rounds.policies, round, object, old).await
        })
        .await?;
    }
    if !hooks.is_empty() {
        let called = webhook::mutate(review, hooks, &mut rounds.webhooks, round, object, old);
        changed |= timed(review, "MutatingAdmissionWebhook", Step::Admit, called).await?;
    }
    Ok(changed)
}

/// Lets validating policies, then validating webhooks refuse the request.
pub(super) async fn validate(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<(), Status> {
    let dynamic = review.dynamic;
    if dynamic.is_exempt(review) {
        return Ok(());
    }
    let compile = |resources: [&'static str; 2], before: Option<&Vec<Policy>>| {
        policy::compile(review.lookup, resources, before.map_or(&[], Vec::as_slice))
    };
    let policies = dynamic.validating_policies.get(review.lookup, compile);
    let compile = |[resource]: [&'static str; 1], _: Option<&Vec<Webhook>>| webhook::compile(review.lookup, resource);
    let hooks = dynamic.validating_webhooks.get(review.lookup, compile);
    if policies.is_empty() && hooks.is_empty() {
        return Ok(());
    }
    if !policies.is_empty() {
        timed(review, "ValidatingAdmissionPolicy", Step::Validate, async {
            policy::validate(review, &policies, object, old).await
        })
        .await?;
    }
    if hooks.is_empty() {
        return Ok(());
    }
    let called = Box::pin(webhook::validate(review, &hooks, object, old));
    timed(review, "ValidatingAdmissionWebhook", Step::Validate, called).await
}

async fn timed<T>(
    review: &Review<'_>,
    plugin: &str,
    step: Step,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let started = monotonic();
    let result = work.await;
    let metrics = &review.dynamic.metrics;
    metrics.controller(plugin, step, review.operation, result.is_err(), started.elapsed());
    result
}

/// Everything that is configured, for a request that leads on to a pod, service or node. `object` is its options.
pub async fn connect(review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
    debug_assert_eq!(review.operation, Operation::Connect);
    mutate(review, Some(object), None, |_| Ok(())).await?;
    validate(review, Some(object), None).await
}

//! Showing stored objects as a version of their kind has them, and storing objects in the version that is stored.
//!
//! Mostly there is nothing to do: an object stored in the version that is asked for, by the present schema, is served as
//! it is. Others are converted, pruned and filled in, and encoded again.

use std::sync::Arc;
use std::time::Duration;

use orlop_api::{KindDef, Status, Value};
use orlop_apiextensions::conversion::{self, ConversionError};
use orlop_base::clock::monotonic;
use orlop_store::{Event, Item};

use super::served::{ConversionWebhook, Served, Target};
use super::table::Kinds;
use crate::lookup::ObjectLookup;
use crate::object::Object;
use crate::registry::Registry;
use crate::webhook_client::{ClientConfig, WebhookClient};

/// What metrics call a call without a usable answer, and an answer that is no review.
const CALL_FAILED: &str = "conversion_webhook_call_failure";
const MALFORMED: &str = "conversion_webhook_malformed_response_failure";
/// How many objects are converted before others have their turn.
const BATCH: usize = 64;
/// Upstream: the timeout of conversion webhooks.
const CONVERSION_TIMEOUT: Duration = Duration::from_secs(30);

impl Registry {
    /// The object as it is served; built-in kinds are served as they are stored.
    pub(crate) async fn present(&self, kind: &'static KindDef, item: Item<Object>) -> Result<Item<Object>, Status> {
        let Some(served) = super::of(kind) else { return Ok(item) };
        if is_plain(kind, &served, &item) {
            return Ok(item);
        }
        let mut shown = self.converted(kind, &served, vec![item]).await?;
        Ok(shown.pop().expect("as many objects come as go"))
    }

    pub(crate) async fn present_all(
        &self,
        kind: &'static KindDef,
        mut items: Vec<Item<Object>>,
    ) -> Result<Vec<Item<Object>>, Status> {
        let Some(served) = super::of(kind) else {
            return Ok(items);
        };
        let other = |(i, item): (usize, &Item<Object>)| (!is_plain(kind, &served, item)).then_some(i);
        let others: Vec<usize> = items.iter().enumerate().filter_map(other).collect();
        for places in others.chunks(BATCH) {
            let batch = places.iter().map(|i| items[*i].clone()).collect();
            let shown = self.converted(kind, &served, batch).await?;
            for (place, item) in places.iter().zip(shown) {
                items[*place] = item;
            }
            tokio::task::yield_now().await;
        }
        Ok(items)
    }

    /// An event as a watcher of that version sees it. The same event if nothing differs, whose bytes all watchers share.
    pub(crate) async fn present_event(
        &self,
        kind: &'static KindDef,
        event: Arc<Event<Object>>,
    ) -> Result<Arc<Event<Object>>, Status> {
        let Some(served) = super::of(kind) else {
            return Ok(event);
        };
        let plain = |item: &Option<Item<Object>>| item.as_ref().is_none_or(|i| is_plain(kind, &served, i));
        if plain(&event.item) && plain(&event.previous) {
            return Ok(event);
        }
        let (mut item, mut previous) = (None, None);
        if let Some(stored) = &event.item {
            item = Some(self.present(kind, stored.clone()).await?);
        }
        if let Some(stored) = &event.previous {
            previous = Some(self.present(kind, stored.clone()).await?);
        }
        Ok(Arc::new(Event {
            revision: event.revision,
            key: event.key.clone(),
            kind: event.kind,
            item,
            previous,
            encoded: Default::default(),
        }))
    }

    async fn converted(
        &self,
        kind: &'static KindDef,
        served: &Served,
        items: Vec<Item<Object>>,
    ) -> Result<Vec<Item<Object>>, Status> {
        let target = served.target(kind)?;
        let values = items.iter().map(|item| self.value_of(item)).collect();
        let values = self.convert(served, &target, values).await?;
        let shown = items.into_iter().zip(values).map(|(item, mut value)| {
            target.schema.default(&mut value);
            Item {
                record: Arc::new(Object::encode(&value, kind)),
                ..item
            }
        });
        Ok(shown.collect())
    }

    /// The object in the version in which its kind is stored; `None`: it is in that version.
    pub(crate) async fn in_storage_version(
        &self,
        kind: &'static KindDef,
        object: &Value,
    ) -> Result<Option<Value>, Status> {
        let Some(served) = super::of(kind) else { return Ok(None) };
        let Some(rows) = self.kinds.rows(&served.facts.name) else {
            return Err(Status::not_found(kind.group, kind.plural, ""));
        };
        if std::ptr::eq(rows.storage, kind) {
            return Ok(None);
        }
        let Some(storage) = super::of(rows.storage) else {
            return Ok(None);
        };
        let target = storage.target(rows.storage)?;
        let mut values = self.convert(&served, &target, vec![object.clone()]).await?;
        Ok(values.pop())
    }

    /// Objects as objects of another version, pruned by its schema.
    async fn convert(&self, served: &Served, target: &Target, values: Vec<Value>) -> Result<Vec<Value>, Status> {
        let converter = Converter {
            client: &self.dynamic_admission.client,
            lookup: self,
            kinds: &self.kinds,
        };
        converter.convert_and_prune(served, target, values).await
    }
}

/// Converts custom objects, with what that takes of the server.
pub(crate) struct Converter<'c> {
    pub client: &'c WebhookClient,
    pub lookup: &'c (dyn ObjectLookup + Sync),
    pub kinds: &'c Kinds,
}

impl Converter<'_> {
    /// An object of another version of a custom kind as an object of `kind`, neither pruned nor filled in.
    // Upstream: apiserver/pkg/admission (ConvertToGVK)
    pub(crate) async fn convert_one(&self, kind: &'static KindDef, object: Value) -> Result<Value, Status> {
        let Some(served) = super::of(kind) else {
            return Ok(object);
        };
        let mut converted = self.convert(&served, &kind.api_version(), vec![object]).await?;
        Ok(converted.pop().expect("as many objects come as go"))
    }

    /// A stored object of a custom kind as `kind` serves it.
    pub(crate) async fn serve_one(&self, kind: &'static KindDef, object: &Arc<Value>) -> Result<Arc<Value>, Status> {
        let Some(served) = super::of(kind) else {
            return Ok(object.clone());
        };
        let target = served.target(kind)?;
        let is_plain = !conversion::needs_conversion(object, &target.api_version);
        if is_plain && !target.schema.schema().has_defaults {
            return Ok(object.clone());
        }
        let mut values = self
            .convert_and_prune(&served, &target, vec![(**object).clone()])
            .await?;
        let mut value = values.pop().expect("as many objects come as go");
        target.schema.default(&mut value);
        Ok(Arc::new(value))
    }

    async fn convert_and_prune(
        &self,
        served: &Served,
        target: &Target,
        values: Vec<Value>,
    ) -> Result<Vec<Value>, Status> {
        let converted = self.convert(served, &target.api_version, values).await?;
        let pruned = converted.into_iter().map(|value| {
            let decoded = target.schema.from_value(value).map_err(Status::internal)?;
            Ok(decoded.value)
        });
        pruned.collect()
    }

    async fn convert(&self, served: &Served, api_version: &str, values: Vec<Value>) -> Result<Vec<Value>, Status> {
        let Some(webhook) = &served.facts.webhook else {
            return Ok(values.into_iter().map(|value| renamed(value, api_version)).collect());
        };
        let Some(from) = values.iter().find(|v| conversion::needs_conversion(v, api_version)) else {
            return Ok(values);
        };
        let from = from["apiVersion"].as_str().unwrap_or("").to_string();
        let started = monotonic();
        let result = self.convert_by_webhook(webhook, api_version, values).await;
        let metrics = &self.kinds.conversions;
        metrics.converted(
            &served.facts.name,
            &from,
            api_version,
            result.is_ok(),
            started.elapsed(),
        );
        result
    }

    /// Asks the webhook for those that are of another version.
    async fn convert_by_webhook(
        &self,
        webhook: &ConversionWebhook,
        api_version: &str,
        mut values: Vec<Value>,
    ) -> Result<Vec<Value>, Status> {
        let others: Vec<usize> = (0..values.len())
            .filter(|i| conversion::needs_conversion(&values[*i], api_version))
            .collect();
        let originals: Vec<&Value> = others.iter().map(|i| &values[*i]).collect();
        let Some(first) = originals.first() else {
            return Ok(values);
        };
        let versions: Vec<&str> = webhook.review_versions.iter().map(String::as_str).collect();
        let version = conversion::review_version(&versions).map_err(Status::internal)?;
        let uid = uuid::Uuid::new_v4().to_string();
        let request = conversion::request(version, &uid, &originals, api_version);
        let failed = |why: String| Status::internal(ConversionError::call(first, why));
        let client = ClientConfig::from_value(&webhook.client).map_err(|e| failed(e.to_string()))?;
        let started = monotonic();
        let metrics = &self.kinds.conversions;
        let answer = self
            .client
            .post(self.lookup, &client, request.to_string().into(), CONVERSION_TIMEOUT)
            .await
            .map_err(|e| failed(e.to_string()))
            .and_then(|answer| serde_json::from_slice::<Value>(&answer).map_err(|e| failed(e.to_string())));
        let answer = answer.inspect_err(|_| metrics.answered(CALL_FAILED, started.elapsed()))?;
        let converted = conversion::accept(version, &uid, &originals, api_version, answer);
        metrics.answered(converted.as_ref().map_or_else(failure_type, |_| ""), started.elapsed());
        let converted = converted.map_err(Status::internal)?;
        for (place, value) in others.into_iter().zip(converted) {
            values[place] = value;
        }
        Ok(values)
    }
}

/// What metrics call it.
fn failure_type(error: &ConversionError) -> &'static str {
    match error {
        ConversionError::Failed { .. } | ConversionError::NoReviewVersion => MALFORMED,
        ConversionError::Count { .. } => "conversion_webhook_partial_response_failure",
        ConversionError::Object { .. } | ConversionError::Metadata { .. } => {
            "conversion_webhook_invalid_converted_object_failure"
        }
    }
}

fn renamed(mut value: Value, api_version: &str) -> Value {
    conversion::convert_none(&mut value, api_version);
    value
}

/// Whether the stored bytes are what is served.
fn is_plain(kind: &KindDef, served: &Served, item: &Item<Object>) -> bool {
    item.record.is_of_version(kind.group, kind.version)
        && (served.is_settled_at(item.mod_revision)
            || served.schema().is_ok_and(|schema| !schema.schema().has_defaults))
}

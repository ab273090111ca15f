//! Requests: typed by what the caller decodes into, addressed by path (`crate::path` makes them).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::error::{BoxError, Error, Result, UnavailableReason};
use crate::path::with_query;
use crate::reachability::Reachability;
use crate::transport::{Client, ResponseBody};

/// For a request, or for the head of a watch's response.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests in flight at once, watches not counted: half of what a server lets one client change at a time, so that
/// bursts queue here rather than being refused there.
const IN_FLIGHT_MAX: usize = 100;
/// Objects in a page of a list. Upstream: client-go's pager.
const PAGE: u32 = 500;

/// A cluster to send requests to. Clones are cheap and share the bound on requests in flight.
#[derive(Clone)]
pub struct Api {
    transport: Transport,
    timeout: Duration,
    in_flight: Arc<Semaphore>,
    reachability: Reachability,
}

#[derive(Clone)]
enum Transport {
    Network(Client),
    InProcess {
        service: BoxCloneSyncService<Request<Full<Bytes>>, Response<ResponseBody>, BoxError>,
        user_agent: HeaderValue,
    },
}

/// What to list. `Default`: everything, in pages.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub field_selector: String,
    pub label_selector: String,
    /// Objects per page; none for 500.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub continue_token: Option<String>,
    /// None for the newest state.
    pub resource_version: Option<String>,
}

/// A list, or a page of it.
#[derive(Clone, Debug)]
pub struct List<T> {
    pub resource_version: String,
    pub items: Vec<T>,
    /// Set if there is more: the token to go on with.
    pub continue_token: Option<String>,
}

/// The body of a delete. `Default`: as the kind says.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
    /// `Orphan`, `Background` or `Foreground`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preconditions: Option<Preconditions>,
}

/// Delete only if it is (still) this one.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

#[derive(Deserialize)]
struct ListBody<T> {
    #[serde(default)]
    metadata: ListMeta,
    // Go writes an empty list as null where nobody made one.
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

impl Api {
    /// A cluster elsewhere. `component` is the caller's name in log lines.
    pub fn new(client: Client, component: &str) -> Api {
        Api::over(Transport::Network(client), component)
    }

    /// An API server in this process: no socket, no TLS, no task in between. The service knows who calls.
    pub fn in_process<S, B>(service: S, user_agent: &str) -> Api
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service
            .map_response(|response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync()))
            .map_err(Into::into);
        let transport = Transport::InProcess {
            service: BoxCloneSyncService::new(service),
            user_agent: HeaderValue::from_str(user_agent).expect("a component's own name is a header value"),
        };
        Api::over(transport, user_agent)
    }

    fn over(transport: Transport, component: &str) -> Api {
        Api {
            transport,
            timeout: DEFAULT_TIMEOUT,
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            reachability: Reachability::new(component),
        }
    }

    /// Part of the same component as `other`: that the server is unreachable is logged once for both.
    pub fn of_component(self, other: &Api) -> Api {
        Api {
            reachability: other.reachability.clone(),
            ..self
        }
    }

    /// The same cluster with another time limit for each request.
    pub fn with_timeout(&self, timeout: Duration) -> Api {
        Api {
            timeout,
            ..self.clone()
        }
    }

    /// Reads an object.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None, Bytes::new()).await
    }

    /// Like `get`, for another representation (`Accept`).
    pub async fn get_as<T: DeserializeOwned>(&self, path: &str, accept: &'static str) -> Result<T> {
        let mut request = request(&Method::GET, path, None, Bytes::new())?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        self.send_and_decode(request, &Method::GET, path).await
    }

    /// All of a collection, page by page, at one revision.
    pub async fn list<T: DeserializeOwned>(&self, path: &str, query: &ListQuery) -> Result<List<T>> {
        let mut all: List<T> = self.list_page(path, query).await?;
        let mut query = query.clone();
        while let Some(token) = all.continue_token.take() {
            query.continue_token = Some(token);
            // A token says at which revision to go on; naming one beside it is refused.
            query.resource_version = None;
            let page = self.list_page(path, &query).await?;
            all.items.extend(page.items);
            all.continue_token = page.continue_token;
        }
        Ok(all)
    }

    /// One page, from the query's token on.
    pub async fn list_page<T: DeserializeOwned>(&self, path: &str, query: &ListQuery) -> Result<List<T>> {
        let limit = query.limit.unwrap_or(PAGE).to_string();
        let uri = with_query(
            path,
            &[
                ("limit", &limit),
                ("fieldSelector", &query.field_selector),
                ("labelSelector", &query.label_selector),
                ("continue", query.continue_token.as_deref().unwrap_or("")),
                ("resourceVersion", query.resource_version.as_deref().unwrap_or("")),
            ],
        );
        let body: ListBody<T> = self.get(&uri).await?;
        Ok(List {
            resource_version: body.metadata.resource_version,
            items: body.items.unwrap_or_default(),
            continue_token: Some(body.metadata.r#continue).filter(|token| !token.is_empty()),
        })
    }

    /// Posts an object to its collection, or to a subresource such as `binding`. If the response is of no interest, take
    /// it as `serde::de::IgnoredAny`.
    pub async fn create<T: DeserializeOwned>(&self, path: &str, object: &impl Serialize) -> Result<T> {
        let body = encode(&Method::POST, path, object)?;
        self.call(Method::POST, path, Some(JSON), body).await
    }

    /// Like `create`, for an object that is encoded already.
    pub async fn create_encoded<T: DeserializeOwned>(&self, path: &str, json: Bytes) -> Result<T> {
        self.call(Method::POST, path, Some(JSON), json).await
    }

    /// Replaces an object. One with a resourceVersion must still have it, or this is a `Conflict`.
    pub async fn replace<T: DeserializeOwned>(&self, path: &str, object: &impl Serialize) -> Result<T> {
        let body = encode(&Method::PUT, path, object)?;
        self.call(Method::PUT, path, Some(JSON), body).await
    }

    /// A JSON merge patch.
    pub async fn patch_merge<T: DeserializeOwned>(&self, path: &str, patch: &impl Serialize) -> Result<T> {
        let body = encode(&Method::PATCH, path, patch)?;
        self.call(Method::PATCH, path, Some(MERGE_PATCH), body).await
    }

    /// A strategic merge patch.
    pub async fn patch_strategic<T: DeserializeOwned>(&self, path: &str, patch: &impl Serialize) -> Result<T> {
        let body = encode(&Method::PATCH, path, patch)?;
        self.call(Method::PATCH, path, Some(STRATEGIC_PATCH), body).await
    }

    /// Server-side apply, by force: what a component says of its own fields holds.
    pub async fn apply<T: DeserializeOwned>(&self, path: &str, manager: &str, object: &impl Serialize) -> Result<T> {
        let body = encode(&Method::PATCH, path, object)?;
        let uri = with_query(path, &[("fieldManager", manager), ("force", "true")]);
        self.call(Method::PATCH, &uri, Some(APPLY_PATCH), body).await
    }

    /// Deletes an object; that it is gone already is `NotFound`.
    pub async fn delete(&self, path: &str, options: &DeleteOptions) -> Result<()> {
        let body = encode(&Method::DELETE, path, options)?;
        let response: Result<IgnoredAny> = self.call(Method::DELETE, path, Some(JSON), body).await;
        response.map(|_| ())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        uri: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<T> {
        self.send_and_decode(request(&method, uri, content_type, body)?, &method, uri)
            .await
    }

    async fn send_and_decode<T: DeserializeOwned>(
        &self,
        request: Request<Bytes>,
        method: &Method,
        uri: &str,
    ) -> Result<T> {
        let _permit = self.in_flight.acquire().await.expect("the semaphore is never closed");
        let response = async {
            let response = self.send(request).await?;
            let bytes = response.into_body().collect().await.map_err(Error::transport)?;
            Ok(bytes.to_bytes())
        };
        let bytes = self.in_time(response).await?;
        serde_json::from_slice(&bytes).map_err(|source| Error::Unreadable {
            request: request_line(method, uri),
            source,
        })
    }

    /// A GET whose response is a stream: the time limit is for its head.
    pub(crate) async fn open(&self, uri: &str) -> Result<ResponseBody> {
        let request = request(&Method::GET, uri, None, Bytes::new())?;
        Ok(self.in_time(self.send(request)).await?.into_body())
    }

    async fn in_time<T>(&self, response: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let result = match tokio::time::timeout(self.timeout, response).await {
            Ok(result) => result,
            Err(_) => Err(Error::Unavailable(UnavailableReason::Timeout(self.timeout))),
        };
        self.reachability.observe(began, &result);
        result
    }

    /// A successful response, its body yet to be read.
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<ResponseBody>> {
        let response = match &self.transport {
            Transport::Network(client) => client.send(request.map(Full::new)).await.map_err(Error::transport)?,
            Transport::InProcess { service, user_agent } => {
                request.headers_mut().insert(USER_AGENT, user_agent.clone());
                let sent = service.clone().oneshot(request.map(Full::new)).await;
                sent.map_err(Error::transport)?
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(Error::transport)?.to_bytes();
        Err(Error::from_response(parts.status.as_u16(), &parts.headers, &bytes))
    }
}

fn request_line(method: &Method, uri: &str) -> String {
    format!("{method} {uri}")
}

fn encode(method: &Method, path: &str, object: &impl Serialize) -> Result<Bytes> {
    let encoded = serde_json::to_vec(object).map_err(|e| Error::Malformed {
        request: request_line(method, path),
        source: e.into(),
    })?;
    Ok(encoded.into())
}

fn request(method: &Method, uri: &str, content_type: Option<&'static str>, body: Bytes) -> Result<Request<Bytes>> {
    let mut builder = Request::builder()
        .method(method)
        .uri(uri)
        .header(ACCEPT, HeaderValue::from_static(JSON));
    if let Some(content_type) = content_type {
        builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    builder.body(body).map_err(|e| Error::Malformed {
        request: request_line(method, uri),
        source: e.into(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fake, FakeReply};

    #[tokio::test]
    async fn each_verb_has_its_method_and_media_type() {
        let fake = Fake::new();
        let api = fake.api();
        let body = json!({"a": 1});
        for _ in 0..6 {
            fake.answer(200, "{}");
        }
        api.create::<Value>("/c", &body).await.unwrap();
        api.replace::<Value>("/c/o", &body).await.unwrap();
        api.patch_merge::<Value>("/c/o", &body).await.unwrap();
        api.patch_strategic::<Value>("/c/o", &body).await.unwrap();
        api.apply::<Value>("/c/o", "me & you", &body).await.unwrap();
        let options = DeleteOptions {
            propagation_policy: Some("Background"),
            preconditions: Some(Preconditions {
                uid: Some("u".into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        api.delete("/c/o", &options).await.unwrap();
        let seen: Vec<String> = fake
            .requests()
            .into_iter()
            .map(|r| format!("{} {} {}", r.line, r.content_type, r.body))
            .collect();
        let expected = [
            "POST /c application/json {\"a\":1}",
            "PUT /c/o application/json {\"a\":1}",
            "PATCH /c/o application/merge-patch+json {\"a\":1}",
            "PATCH /c/o application/strategic-merge-patch+json {\"a\":1}",
            "PATCH /c/o?fieldManager=me%20%26%20you&force=true application/apply-patch+yaml {\"a\":1}",
            "DELETE /c/o application/json {\"propagationPolicy\":\"Background\",\"preconditions\":{\"uid\":\"u\"}}",
        ];
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn a_service_in_this_process_is_a_cluster() {
        let fake = Fake::new();
        fake.answer(200, r#"{"kind":"Node","metadata":{"name":"n"}}"#);
        let api = Api::in_process(fake.service(), "test/1");
        let node: Value = api.get("/api/v1/nodes/n").await.unwrap();
        assert_eq!(node["metadata"]["name"], "n");
        let seen = fake.requests();
        assert_eq!(seen[0].line, "GET /api/v1/nodes/n");
        assert_eq!(seen[0].user_agent, "test/1");
    }

    #[tokio::test]
    async fn lists_go_through_all_pages() {
        let fake = Fake::new();
        fake.answer(
            200,
            r#"{"metadata":{"resourceVersion":"7","continue":"t/1"},"items":[1,2]}"#,
        );
        fake.answer(200, r#"{"metadata":{"resourceVersion":"7"},"items":[3]}"#);
        let query = ListQuery {
            label_selector: "a=b".into(),
            resource_version: Some("5".into()),
            ..Default::default()
        };
        let list: List<u32> = fake.api().list("/c", &query).await.unwrap();
        assert_eq!((list.items, list.resource_version.as_str()), (vec![1, 2, 3], "7"));
        assert!(list.continue_token.is_none());
        let lines: Vec<String> = fake.requests().into_iter().map(|r| r.line).collect();
        assert_eq!(
            lines,
            [
                "GET /c?limit=500&labelSelector=a%3Db&resourceVersion=5",
                "GET /c?limit=500&labelSelector=a%3Db&continue=t%2F1"
            ]
        );
        fake.answer(200, r#"{"metadata":{},"items":null}"#);
        let empty: List<u32> = fake.api().list("/c", &ListQuery::default()).await.unwrap();
        assert!(empty.items.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_time_out_and_errors_say_what_is_wrong() {
        let fake = Fake::new();
        fake.reply(FakeReply::Never);
        let error = fake.api().get::<Value>("/slow").await.unwrap_err();
        assert!(
            matches!(error, Error::Unavailable(UnavailableReason::Timeout(DEFAULT_TIMEOUT))),
            "{error:?}"
        );
        fake.reply(FakeReply::Broken);
        let error = fake.api().get::<Value>("/broken").await.unwrap_err();
        assert!(
            matches!(error, Error::Unavailable(UnavailableReason::Transport(_))),
            "{error:?}"
        );
        fake.answer(404, r#"{"reason":"NotFound","message":"no"}"#);
        let error = fake.api().get::<Value>("/x").await.unwrap_err();
        assert!(matches!(error, Error::NotFound(_)), "{error:?}");
        fake.answer(200, "{");
        let error = fake.api().get::<Value>("/x").await.unwrap_err();
        assert_eq!(error.to_string(), "failed to decode the response to GET /x");
        let error = fake.api().get::<Value>("no path").await.unwrap_err();
        assert_eq!(error.to_string(), "invalid request GET no path");
    }
}

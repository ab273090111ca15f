//! Static pods from an address: asked for time and again, taken when they changed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::manifest::LENGTH_MAX;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The whole answer; `Err` says in words what went wrong.
pub(super) async fn fetch(address: &str, headers: &BTreeMap<String, Vec<String>>) -> Result<Bytes, String> {
    let uri: Uri = address.parse().map_err(|e| format!("{address} is no address: {e}"))?;
    let mut request = Request::get(uri);
    for (name, value) in headers
        .iter()
        .flat_map(|(name, all)| all.iter().map(move |v| (name, v)))
    {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
    let connector = HttpsConnectorBuilder::new()
        .with_native_roots()
        .map_err(|e| format!("no certificate authorities to trust: {e}"))?
        .https_or_http()
        .enable_http1()
        .build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let answered = async {
        let response = client.request(request).await.map_err(|e| e.to_string())?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the answer is {status}"));
        }
        let body = Limited::new(response.into_body(), LENGTH_MAX).collect().await;
        let bytes = body.map_err(|e| e.to_string())?.to_bytes();
        match bytes.is_empty() {
            true => Err("the answer is empty".to_string()),
            false => Ok(bytes),
        }
    };
    let timed = tokio::time::timeout(TIMEOUT, answered).await;
    timed.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
}

//! Static pods from a URL: fetched periodically, taken over when they changed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::manifest::{LENGTH_MAX, SourceError};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The whole answer.
pub(super) async fn fetch(address: &str, headers: &BTreeMap<String, Vec<String>>) -> Result<Bytes, SourceError> {
    let uri: Uri = address
        .parse()
        .map_err(|e| SourceError::Request(format!("{address} is not a valid URL: {e}")))?;
    let mut request = Request::get(uri);
    for (name, value) in headers
        .iter()
        .flat_map(|(name, all)| all.iter().map(move |v| (name, v)))
    {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(SourceError::request)?;
    let connector = HttpsConnectorBuilder::new()
        .with_native_roots()
        .map_err(|e| SourceError::Request(format!("failed to load certificate authorities: {e}")))?
        .https_or_http()
        .enable_http1()
        .build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let answered = async {
        let response = client.request(request).await.map_err(SourceError::request)?;
        let status = response.status();
        if !status.is_success() {
            return Err(SourceError::Request(format!("the server answered {status}")));
        }
        let body = Limited::new(response.into_body(), LENGTH_MAX).collect().await;
        let bytes = body.map_err(SourceError::request)?.to_bytes();
        match bytes.is_empty() {
            true => Err(SourceError::Request("the answer is empty".to_string())),
            false => Ok(bytes),
        }
    };
    let timed = tokio::time::timeout(TIMEOUT, answered).await;
    timed.unwrap_or_else(|_| Err(SourceError::Request(format!("no answer within {TIMEOUT:?}"))))
}

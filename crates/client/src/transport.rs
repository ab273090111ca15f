//! Ways to an API server: over TLS as a kubeconfig or a pod's service account says, or straight into a server that
//! runs in this process.

use std::path::{Path, PathBuf};

use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use kube::Config;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use tower::{Service, ServiceExt};

use crate::error::BoxError;

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the kubeconfig {path} can't be used")]
    Kubeconfig {
        path: PathBuf,
        source: kube::config::KubeconfigError,
    },
    #[error("there is no kubeconfig (give one with --kubeconfig), and this does not run in a pod of a cluster")]
    InCluster(#[source] kube::config::InClusterError),
    #[error("the address of the API server, {address:?}, is no URL")]
    Address {
        address: String,
        source: http::uri::InvalidUri,
    },
    #[error("{0:?} can't be a user agent")]
    UserAgent(String),
    #[error("the client can't be set up")]
    Client(#[source] kube::Error),
}

/// A client as the kubeconfig file says; without one, as a pod of the cluster. `master`, if given, takes the place of the
/// server's address.
pub async fn from_kubeconfig(
    path: Option<&Path>,
    master: Option<&str>,
    user_agent: &str,
) -> Result<kube::Client, ConnectError> {
    let config = config(path, master, user_agent).await?;
    kube::Client::try_from(config).map_err(ConnectError::Client)
}

/// A client of the same cluster that says nothing of who it is: whoever sends with it adds that.
pub async fn without_credentials(
    path: Option<&Path>,
    master: Option<&str>,
    user_agent: &str,
) -> Result<kube::Client, ConnectError> {
    let mut config = config(path, master, user_agent).await?;
    config.auth_info = AuthInfo::default();
    kube::Client::try_from(config).map_err(ConnectError::Client)
}

async fn config(path: Option<&Path>, master: Option<&str>, user_agent: &str) -> Result<Config, ConnectError> {
    let mut config = match path {
        None => match (Config::incluster(), master) {
            (Ok(config), _) => config,
            // An address alone is enough for a server that asks for no credentials.
            (Err(_), Some(master)) => Config::new(address(master)?),
            (Err(source), None) => return Err(ConnectError::InCluster(source)),
        },
        Some(path) => {
            let wrong = |source| ConnectError::Kubeconfig {
                path: path.to_path_buf(),
                source,
            };
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(wrong)?
        }
    };
    if let Some(master) = master {
        config.cluster_url = address(master)?;
    }
    // Whoever calls decides what to try again, and when; a second layer would multiply the tries.
    config.default_retry = false;
    config.headers.push((USER_AGENT, agent(user_agent)?));
    Ok(config)
}

fn address(text: &str) -> Result<http::Uri, ConnectError> {
    let text = match text.contains("://") {
        true => text.to_string(),
        false => format!("http://{text}"),
    };
    text.parse()
        .map_err(|source| ConnectError::Address { address: text, source })
}

fn agent(text: &str) -> Result<HeaderValue, ConnectError> {
    HeaderValue::from_str(text).map_err(|_| ConnectError::UserAgent(text.to_string()))
}

/// A client over a service in this process: no socket, no TLS. Who calls is known to the service. For requests of our
/// own, `Api::in_process` is the shorter way.
pub fn in_process<S, B>(service: S, user_agent: &str) -> Result<kube::Client, ConnectError>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let agent = agent(user_agent)?;
    let service = service.map_request(move |mut request: Request<Body>| {
        request.headers_mut().insert(USER_AGENT, agent.clone());
        request
    });
    Ok(kube::Client::new(service, "default"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[tokio::test]
    async fn errors_name_the_file_and_the_address() {
        let error = from_kubeconfig(Some(Path::new("/nowhere/kubeconfig")), None, "t").await;
        let error = error.err().unwrap();
        assert_eq!(error.to_string(), "the kubeconfig /nowhere/kubeconfig can't be used");
        let error = from_kubeconfig(None, Some("http://a b"), "t").await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "the address of the API server, \"http://a b\", is no URL"
        );
        let error = from_kubeconfig(None, Some("localhost:1"), "a\nb").await.err().unwrap();
        assert_eq!(error.to_string(), "\"a\\nb\" can't be a user agent");
        assert!(from_kubeconfig(None, Some("localhost:1"), "t").await.is_ok());
    }

    #[tokio::test]
    async fn a_service_in_this_process_is_a_cluster() {
        let fake = Fake::new();
        fake.answer(200, r#"{"kind":"Node","metadata":{"name":"n"}}"#);
        let client = in_process(fake.service(), "test/1").unwrap();
        let api = crate::Api::new(client, "test");
        let node: serde_json::Value = api.get("/api/v1/nodes/n").await.unwrap();
        assert_eq!(node["metadata"]["name"], "n");
        let seen = fake.requests();
        assert_eq!(seen[0].line, "GET /api/v1/nodes/n");
        assert_eq!(seen[0].user_agent, "test/1");
    }
}

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;

use hyper_util::rt::TokioExecutor;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tonic::server::{Grpc as Server, UnaryService};
use tonic::{Request, Response, Status};

use super::*;

#[test]
fn seeds_and_keys_decrypt_what_they_encrypted() {
    for kind in [SEED_TYPE, 0] {
        let source = Source::of(&[9; 32], kind).unwrap();
        let data = source.encrypt("/registry/secrets/a/b", b"hello").unwrap();
        assert_eq!(source.decrypt("/registry/secrets/a/b", &data).unwrap(), b"hello");
        assert!(source.decrypt("/registry/secrets/a/c", &data).is_err());
        let other = Source::of(&[8; 32], kind).unwrap();
        assert!(other.decrypt("/registry/secrets/a/b", &data).is_err());
    }
    assert!(Source::of(&[1; 31], SEED_TYPE).is_none());
}

/// A plugin that turns all bits over, under the key of this name.
#[derive(Clone)]
struct Plugin(Arc<Mutex<String>>);

fn turned(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// One call of it.
struct Call<F>(F);

impl<Q, A, F: Fn(Q) -> Result<A, Status>> UnaryService<Q> for Call<F> {
    type Response = A;
    type Future = Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        ready((self.0)(request.into_inner()).map(Response::new))
    }
}

async fn answer<Q, A, F>(call: F, request: http::Request<hyper::body::Incoming>) -> http::Response<tonic::body::Body>
where
    Q: Message + Default + Send + Sync + 'static,
    A: Message + Send + Sync + 'static,
    F: Fn(Q) -> Result<A, Status> + Send + Sync,
{
    Server::new(ProstCodec::<A, Q>::default())
        .unary(Call(call), request)
        .await
}

impl Plugin {
    fn serve(&self, path: &Path) {
        let (listener, plugin) = (UnixListener::bind(path).unwrap(), self.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let plugin = plugin.clone();
                let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let plugin = plugin.clone();
                    async move { Ok::<_, Infallible>(plugin.answer(request).await) }
                });
                tokio::spawn(async move {
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new()).http2_only();
                    drop(
                        server
                            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
                            .await,
                    );
                });
            }
        });
    }

    async fn answer(&self, request: http::Request<hyper::body::Incoming>) -> http::Response<tonic::body::Body> {
        let key_id = self.0.lock().clone();
        match request.uri().path() {
            "/v2.KeyManagementService/Status" => {
                let status = StatusResponse {
                    version: "v2".into(),
                    healthz: if key_id == "ill" { "no".into() } else { "ok".into() },
                    key_id,
                };
                answer(move |_: StatusRequest| Ok(status.clone()), request).await
            }
            "/v2.KeyManagementService/Encrypt" => {
                let encrypt = move |asked: EncryptRequest| {
                    Ok(EncryptResponse {
                        ciphertext: turned(&asked.plaintext),
                        key_id: key_id.clone(),
                        annotations: [("a.example".to_string(), b"x".to_vec())].into(),
                    })
                };
                answer(encrypt, request).await
            }
            "/v2.KeyManagementService/Decrypt" => {
                let decrypt = |asked: DecryptRequest| match asked.annotations.get("a.example") {
                    Some(_) => Ok(DecryptResponse {
                        plaintext: turned(&asked.ciphertext),
                    }),
                    None => Err(Status::invalid_argument("annotations are missing")),
                };
                answer(decrypt, request).await
            }
            other => Status::unimplemented(other.to_string()).into_http(),
        }
    }
}

const KEY: &str = "/registry/secrets/a/b";

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_is_asked_for_seeds_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("kms.sock");
    let configuration = KmsConfiguration {
        api_version: "v2".into(),
        name: "p".into(),
        endpoint: format!("unix://{}", socket.display()),
        timeout: Some(Duration::from_secs(20)),
        ..KmsConfiguration::default()
    };
    let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    assert!(
        Kms::connect(&configuration, clock.clone()).await.is_err(),
        "nobody is there"
    );

    let plugin = Plugin(Arc::new(Mutex::new("one".to_string())));
    plugin.serve(&socket);
    let kms = Kms::connect(&configuration, clock.clone()).await.unwrap();
    let first = kms.encrypt(KEY, b"hello", true).unwrap();
    assert_eq!(kms.decrypt(KEY, &first).unwrap(), (b"hello".to_vec(), false));
    // A new key makes what was written with the last one stale.
    assert!(!kms.refresh().await.unwrap());
    *plugin.0.lock() = "two".to_string();
    assert!(kms.refresh().await.unwrap());
    assert_eq!(kms.decrypt(KEY, &first).unwrap(), (b"hello".to_vec(), true));

    // Whoever starts anew has the plugin decrypt the seed.
    let again = Kms::connect(&configuration, clock.clone()).await.unwrap();
    let (kept, sealed) = (again.clone(), first.clone());
    let read = tokio::task::spawn_blocking(move || kept.decrypt(KEY, &sealed).unwrap());
    assert_eq!(read.await.unwrap(), (b"hello".to_vec(), true));
    assert!(again.decrypt(KEY, &first[..first.len() - 3]).is_err());

    // A plugin that is ill is waited for, but not for ever; what was stored before can be copied nevertheless.
    *plugin.0.lock() = "ill".to_string();
    let ill = again.refresh().await.unwrap_err().to_string();
    assert!(ill.contains("got unexpected healthz status: \"no\""), "{ill}");
    clock.advance(Duration::from_secs(179));
    assert!(again.encrypt(KEY, b"hello", true).is_ok());
    clock.advance(Duration::from_secs(2));
    let expired = again.encrypt(KEY, b"hello", true).unwrap_err().to_string();
    assert!(expired.contains("expired at 2026-01-01T00:03:00Z"), "{expired}");
    assert!(again.encrypt(KEY, b"hello", false).is_ok());
}

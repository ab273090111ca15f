//! The HTTP part: which protocol a client asks to switch to, and how it is answered.

use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

pub(crate) const SPDY: &str = "SPDY/3.1";
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_VERSIONS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");

/// Why a request can't be served: an HTTP answer instead of a switch of protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// The protocols that would have been accepted, where the client's were the trouble.
    accepted: Vec<&'static str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: String) -> Self {
        Refusal {
            status,
            message,
            accepted: Vec::new(),
        }
    }

    /// The HTTP answer, in plain text.
    pub fn response(self) -> Response<String> {
        let mut response = Response::new(self.message + "\n");
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        for protocol in self.accepted {
            headers.append(ACCEPTED_VERSIONS, HeaderValue::from_static(protocol));
        }
        response
    }
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreed {
    Spdy(&'static str),
    /// With an empty name where the client named none.
    WebSocket(&'static str),
}

/// The answer that switches protocols, or why not. Protocols are in the order of the client's preference.
pub(crate) fn agree(
    headers: &HeaderMap,
    spdy: &[&'static str],
    websocket: &[&'static str],
) -> Result<(Agreed, Response<()>), Refusal> {
    if is_websocket(headers) {
        return agree_on_websocket(headers, websocket);
    }
    let versions: Vec<&str> = list(headers, &PROTOCOL_VERSION).collect();
    if versions.is_empty() {
        let count = headers.len();
        let text = format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {count} headers"
        );
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let Some(version) = first_common(&versions, spdy) else {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {}, server accepts {}",
            bracketed(&versions),
            bracketed(spdy)
        );
        return Err(Refusal {
            accepted: spdy.to_vec(),
            ..Refusal::new(StatusCode::FORBIDDEN, text)
        });
    };
    if !is_upgrade(headers) || !has_word(headers, &UPGRADE, SPDY) {
        let text = "unable to upgrade: missing upgrade headers in request".to_owned();
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    let mut response = switching(SPDY);
    response
        .headers_mut()
        .insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
    Ok((Agreed::Spdy(version), response))
}

fn agree_on_websocket(headers: &HeaderMap, known: &[&'static str]) -> Result<(Agreed, Response<()>), Refusal> {
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "the header Sec-WebSocket-Key is missing".to_owned(),
        ));
    };
    let wanted: Vec<&str> = list(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
    let protocol = match first_common(&wanted, known) {
        Some(protocol) => protocol,
        None if wanted.is_empty() && known.contains(&"") => "",
        None => {
            let text = format!(
                "requested protocol(s) are not supported: {}; supports {}",
                bracketed(&wanted),
                bracketed(known)
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, text));
        }
    };
    let mut response = switching("websocket");
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes())).expect("base64 is a header value");
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept);
    if !protocol.is_empty() {
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok((Agreed::WebSocket(protocol), response))
}

fn switching(to: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(to));
    response
}

/// Whether a request asks to leave HTTP.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    has_word(headers, &CONNECTION, "upgrade")
}

/// Whether a request asks for WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers)
        && headers
            .get(UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// The protocols a client offers, in its order.
pub fn websocket_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    list(headers, &SEC_WEBSOCKET_PROTOCOL)
}

fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    list(headers, name).any(|value| value.eq_ignore_ascii_case(word))
}

/// The values of a header that may come several times or hold several values.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

fn first_common(wanted: &[&str], known: &[&'static str]) -> Option<&'static str> {
    wanted
        .iter()
        .find_map(|wanted| known.iter().find(|known| *known == wanted))
        .copied()
}

fn bracketed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn clients_get_the_first_they_know() {
        const SPDY_KNOWN: [&str; 2] = ["v4.channel.k8s.io", "v3.channel.k8s.io"];
        const WS_KNOWN: [&str; 3] = ["", "v4.channel.k8s.io", "v5.channel.k8s.io"];
        let ask = |pairs: &[(&'static str, &'static str)]| {
            agree(&headers(pairs), &SPDY_KNOWN, &WS_KNOWN).map(|(agreed, _)| agreed)
        };
        let refused = |pairs: &[(&'static str, &'static str)]| {
            ask(pairs).map_err(|refusal| (refusal.status.as_u16(), refusal.message))
        };
        let spdy = [("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")];
        let version = |value| [spdy[0], spdy[1], ("x-stream-protocol-version", value)];
        assert_eq!(
            ask(&version("v9, v3.channel.k8s.io, v4.channel.k8s.io")),
            Ok(Agreed::Spdy("v3.channel.k8s.io"))
        );
        assert_eq!(
            refused(&version("v9")),
            Err((
                403,
                "unable to upgrade: unable to negotiate protocol: client supports [v9], server accepts \
                 [v4.channel.k8s.io v3.channel.k8s.io]"
                    .to_owned()
            ))
        );
        assert_eq!(refused(&spdy).unwrap_err().0, 400);
        assert_eq!(
            refused(&[("x-stream-protocol-version", "v4.channel.k8s.io")])
                .unwrap_err()
                .0,
            400
        );

        let ws = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let named = |value| [ws[0], ws[1], ws[2], ("sec-websocket-protocol", value)];
        let (agreed, response) =
            agree(&headers(&named("v5.channel.k8s.io,v4.channel.k8s.io")), &[], &WS_KNOWN).unwrap();
        assert_eq!(agreed, Agreed::WebSocket("v5.channel.k8s.io"));
        assert_eq!(
            response.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
        assert_eq!(ask(&ws), Ok(Agreed::WebSocket("")));
        assert_eq!(refused(&named("nonsense")).unwrap_err().0, 403);
        assert_eq!(refused(&ws[..2]).unwrap_err().0, 400);
    }
}

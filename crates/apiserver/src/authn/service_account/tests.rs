use rcgen::KeyPair;

use super::*;
use crate::lookup::fixture::Objects;

pub(crate) fn issuer() -> TokenIssuer {
    let key = KeyPair::generate().unwrap();
    TokenIssuer::new(DEFAULT_ISSUER, &key.serialize_pem()).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

const ROBOT: ServiceAccountRef<'_> = ServiceAccountRef {
    namespace: "ns",
    name: "robot",
    uid: "u-1",
};

fn bound(name: &str, uid: &str) -> Bound {
    Bound {
        name: name.into(),
        uid: uid.into(),
    }
}

fn object(namespace: &str, name: &str, uid: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}})
}

fn cluster() -> Objects {
    Objects::default()
        .with("serviceaccounts", object("ns", "robot", "u-1"))
        .with("pods", object("ns", "web", "p-1"))
        .with("secrets", object("ns", "s", "s-1"))
        .with("nodes", object("", "n1", "n-1"))
}

fn check(issuer: &TokenIssuer, token: &str, now: Timestamp, objects: &Objects) -> Result<Arc<UserInfo>, String> {
    match issuer.authenticate(token, issuer.api_audiences(), now, objects) {
        Ok(Some(found)) => Ok(found.user),
        Ok(None) => Err("not ours".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn issued_tokens_identify_their_account() {
    let (issuer, objects) = (issuer(), cluster());
    let pod = BoundObject::Pod {
        object: bound("web", "p-1"),
        node: Some(bound("n1", "n-1")),
    };
    let (token, expires) = issuer
        .issue(ROBOT, issuer.api_audiences(), 3600, Some(pod), at(0))
        .unwrap();
    assert_eq!(expires, at(3600));
    // The second time the signature is remembered.
    for _ in 0..2 {
        let user = check(&issuer, &token, at(10), &objects).unwrap();
        assert_eq!(
            (user.name.as_str(), user.uid.as_str()),
            ("system:serviceaccount:ns:robot", "u-1")
        );
        assert_eq!(
            user.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:ns",
                "system:authenticated"
            ]
        );
        let extra: Vec<(&str, &str)> = user.extra.iter().map(|(k, v)| (k.as_str(), v[0].as_str())).collect();
        assert!(extra[0].1.starts_with("JTI="));
        assert_eq!(
            extra[1..],
            [
                (NODE_NAME, "n1"),
                (NODE_UID, "n-1"),
                (POD_NAME, "web"),
                (POD_UID, "p-1")
            ]
        );
    }

    let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let mut claims: Value = serde_json::from_slice(&payload).unwrap();
    claims["jti"] = json!("x");
    assert_eq!(
        claims,
        json!({"iss": DEFAULT_ISSUER, "sub": "system:serviceaccount:ns:robot", "aud": [DEFAULT_ISSUER], "jti": "x",
            "exp": at(3600).as_second(), "iat": at(0).as_second(), "nbf": at(0).as_second(),
            "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "u-1"},
                "pod": {"name": "web", "uid": "p-1"}, "node": {"name": "n1", "uid": "n-1"}}})
    );
    let header = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&header).unwrap(),
        json!({"alg": "ES256", "kid": issuer.jwks()["keys"][0]["kid"]})
    );
}

#[test]
fn tokens_end() {
    let (issuer, objects) = (issuer(), cluster());
    let issue = |seconds, object| {
        issuer
            .issue(ROBOT, issuer.api_audiences(), seconds, object, at(0))
            .unwrap()
    };
    let (token, _) = issue(600, None);
    for (now, expected) in [
        (-61, Err("service account token is not valid yet")),
        (-59, Ok(())),
        (659, Ok(())),
        (661, Err("service account token has expired")),
    ] {
        assert_eq!(
            check(&issuer, &token, at(now), &objects).map(drop),
            expected.map_err(String::from),
            "{now}"
        );
    }
    assert_eq!(issue(1, None).1, at(600), "no shorter than ten minutes");
    assert_eq!(issue(i64::MAX, None).1, at(YEAR_SECONDS), "no longer than a year");
}

#[test]
fn tokens_die_with_what_they_are_bound_to() {
    let (now, issuer) = (at(100), issuer());
    let deleted = |object: &Value, ago: i64| {
        let mut object = object.clone();
        object["metadata"]["deletionTimestamp"] = json!(at(100 - ago).to_string());
        object
    };
    let invalidated = "service account token has been invalidated";
    let pod = || BoundObject::Pod {
        object: bound("web", "p-1"),
        node: None,
    };
    let secret = || BoundObject::Secret(bound("s", "s-1"));
    let node = || BoundObject::Node(bound("n1", "n-1"));
    // bound to, what is changed: resource and new object (none: removed), expected error
    let cases = [
        (None, "serviceaccounts", object("ns", "robot", "u-1"), ""),
        (
            None,
            "serviceaccounts",
            Value::Null,
            r#"serviceaccounts "robot" not found"#,
        ),
        (
            None,
            "serviceaccounts",
            object("ns", "robot", "u-2"),
            "service account UID (u-2) does not match claim (u-1)",
        ),
        (None, "serviceaccounts", deleted(&object("ns", "robot", "u-1"), 59), ""),
        (
            None,
            "serviceaccounts",
            deleted(&object("ns", "robot", "u-1"), 61),
            "service account ns/robot has been deleted",
        ),
        (None, "pods", Value::Null, ""),
        (Some(pod()), "pods", Value::Null, invalidated),
        (
            Some(pod()),
            "pods",
            object("ns", "web", "p-2"),
            "pod UID (p-2) does not match service account pod ref claim (p-1)",
        ),
        (Some(pod()), "pods", deleted(&object("ns", "web", "p-1"), 59), ""),
        (Some(pod()), "pods", deleted(&object("ns", "web", "p-1"), -30), ""),
        (
            Some(pod()),
            "pods",
            deleted(&object("ns", "web", "p-1"), 61),
            invalidated,
        ),
        (Some(pod()), "nodes", Value::Null, ""),
        (Some(secret()), "secrets", Value::Null, invalidated),
        (
            Some(secret()),
            "secrets",
            object("ns", "s", "s-2"),
            "secret UID (s-2) does not match service account secret ref claim (s-1)",
        ),
        (Some(node()), "nodes", object("", "n1", "n-1"), ""),
        (Some(node()), "nodes", Value::Null, invalidated),
    ];
    for (bound, resource, change, expected) in cases {
        let objects = cluster();
        let what = format!("{bound:?} {resource} {change}");
        let (token, _) = issuer.issue(ROBOT, issuer.api_audiences(), 3600, bound, at(0)).unwrap();
        check(&issuer, &token, now, &objects).unwrap();
        match (&change, resource) {
            (Value::Null, "serviceaccounts") => objects.remove(resource, "ns", "robot"),
            (Value::Null, "pods") => objects.remove(resource, "ns", "web"),
            (Value::Null, "secrets") => objects.remove(resource, "ns", "s"),
            (Value::Null, _) => objects.remove(resource, "", "n1"),
            _ => objects.put(resource, change),
        }
        assert_eq!(
            check(&issuer, &token, now, &objects).err().unwrap_or_default(),
            expected,
            "{what}"
        );
    }
}

#[test]
fn forgeries_are_refused() {
    let (issuer, other, objects) = (issuer(), issuer(), cluster());
    let (token, _) = issuer.issue(ROBOT, issuer.api_audiences(), 3600, None, at(0)).unwrap();
    let (foreign, _) = other.issue(ROBOT, issuer.api_audiences(), 3600, None, at(0)).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = |iss: &str| encode(json!({"iss": iss, "sub": "x", "aud": [DEFAULT_ISSUER]}));
    let none = encode(json!({"alg": "none"}));
    let hmac_header = encode(json!({"alg": "HS256"}));
    // The public key, which everybody knows, taken for a shared secret.
    let hmac_body = format!("{hmac_header}.{}", parts[1]);
    let public = EncodingKey::from_secret(issuer.verifying[0].id.as_bytes());
    let hmac = jsonwebtoken::crypto::sign(hmac_body.as_bytes(), &public, jsonwebtoken::Algorithm::HS256).unwrap();
    let foreign_without_id = {
        let header = encode(json!({"alg": "ES256"}));
        let body = format!("{header}.{}", parts[1]);
        let signature =
            jsonwebtoken::crypto::sign(body.as_bytes(), &other.signing, jsonwebtoken::Algorithm::ES256).unwrap();
        format!("{body}.{signature}")
    };
    let cases = [
        ("signed by another key", foreign),
        ("signed by another key, none named", foreign_without_id),
        (
            "changed claims",
            format!("{}.{}.{}", parts[0], claims(DEFAULT_ISSUER), parts[2]),
        ),
        (
            "cut signature",
            format!("{}.{}.{}", parts[0], parts[1], &parts[2][..20]),
        ),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("no algorithm", format!("{none}.{}.", parts[1])),
        ("shared secret", format!("{hmac_body}.{hmac}")),
        ("bad header", format!("e30.{}.{}", parts[1], parts[2])),
    ];
    for (name, token) in cases {
        let refused = issuer.authenticate(&token, issuer.api_audiences(), at(1), &objects);
        assert!(refused.is_err(), "{name}");
    }
    // Not ours at all: somebody else may know them.
    let strange = format!("{}.{}.{}", parts[0], claims("https://elsewhere"), parts[2]);
    for token in ["", "a.b.c", "a.b", "....", "{}", strange.as_str(), "abc.def.ghi.jkl"] {
        assert!(
            issuer
                .authenticate(token, issuer.api_audiences(), at(1), &objects)
                .unwrap()
                .is_none(),
            "{token}"
        );
    }
    // A good token is still good after all that.
    check(&issuer, &token, at(1), &objects).unwrap();
}

#[test]
fn audiences_must_meet() {
    let (issuer, objects) = (issuer(), cluster());
    let list = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let (token, _) = issuer.issue(ROBOT, &list(&["a", "b", "c"]), 3600, None, at(0)).unwrap();
    let found = issuer
        .authenticate(&token, &list(&["b", "x", "a"]), at(0), &objects)
        .unwrap()
        .unwrap();
    assert_eq!(found.audiences, ["a", "b"]);
    assert_eq!(
        check(&issuer, &token, at(0), &objects).unwrap_err(),
        format!("token audiences [\"a\", \"b\", \"c\"] is invalid for the target audiences [{DEFAULT_ISSUER:?}]")
    );
}

#[test]
fn tokens_of_secrets() {
    let (issuer, objects) = (issuer(), cluster());
    let token = issuer.issue_for_secret(ROBOT, "s").unwrap();
    assert_eq!(
        check(&issuer, &token, at(0), &objects).unwrap_err(),
        "Token does not match server's copy"
    );
    let mut secret = object("ns", "s", "s-1");
    secret["data"] = json!({"token": base64::prelude::BASE64_STANDARD.encode(&token)});
    objects.put("secrets", secret.clone());
    assert_eq!(
        check(&issuer, &token, at(0), &objects).unwrap().name,
        "system:serviceaccount:ns:robot"
    );

    // Its use is noted, once a day.
    use futures::FutureExt;
    let noted = || issuer.legacy_uses.next().now_or_never().map(Vec::from_iter);
    assert_eq!(noted(), Some(vec![("ns".to_string(), "s".to_string())]));
    secret["metadata"]["labels"] = json!({LAST_USED: day(at(0))});
    objects.put("secrets", secret.clone());
    check(&issuer, &token, at(0), &objects).unwrap();
    assert_eq!(noted(), None);
    check(&issuer, &token, at(86_400), &objects).unwrap();
    assert_eq!(noted().map(|secrets| secrets.len()), Some(1));

    secret["metadata"]["labels"] = json!({"kubernetes.io/legacy-token-invalid-since": "2026-01-01"});
    objects.put("secrets", secret);
    assert!(
        check(&issuer, &token, at(0), &objects)
            .unwrap_err()
            .ends_with("has been marked invalid")
    );
    objects.remove("secrets", "ns", "s");
    assert_eq!(
        check(&issuer, &token, at(0), &objects).unwrap_err(),
        "Token has been invalidated"
    );
    let nameless = issuer
        .issue_for_secret(ServiceAccountRef { name: "", ..ROBOT }, "s")
        .unwrap();
    assert_eq!(
        check(&issuer, &nameless, at(0), &objects).unwrap_err(),
        "serviceAccountName claim is missing"
    );
}

#[test]
fn others_can_verify_with_the_published_key() {
    let (issuer, objects) = (issuer(), cluster());
    let (token, _) = issuer.issue(ROBOT, issuer.api_audiences(), 3600, None, at(0)).unwrap();
    check(&issuer, &token, at(0), &objects).unwrap();
    let key = &issuer.jwks()["keys"][0];
    let key =
        jsonwebtoken::DecodingKey::from_ec_components(key["x"].as_str().unwrap(), key["y"].as_str().unwrap()).unwrap();
    jsonwebtoken::decode::<Value>(&token, &key, &issuer.verifying[0].validation).unwrap();
    assert_eq!(
        issuer.openid_configuration("192.0.2.1:6443"),
        json!({"issuer": DEFAULT_ISSUER, "jwks_uri": "https://192.0.2.1:6443/openid/v1/jwks",
            "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"]})
    );
}

/// A key of each kind that files may hold: PEM of the private half and of the public one.
fn pairs() -> [(&'static str, String, String); 2] {
    let ec = KeyPair::generate().unwrap();
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    [
        ("ES256", ec.serialize_pem(), ec.public_key_pem()),
        ("RS256", rsa.serialize_pem(), rsa.public_key_pem()),
    ]
}

#[test]
fn keys_of_the_users_own() {
    let objects = cluster();
    let own = issuer();
    for (algorithm, private, public) in pairs() {
        let signer = TokenIssuer::new(DEFAULT_ISSUER, &private).unwrap();
        let (token, _) = signer.issue(ROBOT, signer.api_audiences(), 3600, None, at(0)).unwrap();
        check(&signer, &token, at(0), &objects).unwrap();
        assert_eq!(signer.jwks()["keys"][0]["alg"], algorithm);
        assert!(
            check(&own, &token, at(0), &objects).is_err(),
            "signed with a key that is not known"
        );

        // The public half alone, the private one, and among others.
        for text in [public.clone(), private.clone(), format!("{}\n{public}", pairs()[0].2)] {
            let verifier = issuer().with_verifying_keys(&[text]).unwrap();
            check(&verifier, &token, at(0), &objects).unwrap();
            let (own_token, _) = verifier
                .issue(ROBOT, verifier.api_audiences(), 3600, None, at(0))
                .unwrap();
            assert!(
                check(&verifier, &own_token, at(0), &objects).is_err(),
                "its own key is not among those"
            );
        }
        let certificate = rcgen::CertificateParams::new(vec![]).unwrap();
        let certificate = certificate
            .self_signed(&KeyPair::from_pem(&private).unwrap())
            .unwrap()
            .pem();
        let verifier = issuer().with_verifying_keys(&[certificate]).unwrap();
        check(&verifier, &token, at(0), &objects).unwrap();
    }
    for wrong in [
        "",
        "nonsense",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ] {
        assert!(issuer().with_verifying_keys(&[wrong.into()]).is_err(), "{wrong:?}");
        assert!(TokenIssuer::new(DEFAULT_ISSUER, wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn other_issuers_of_the_same_key() {
    let objects = cluster();
    let key = KeyPair::generate().unwrap().serialize_pem();
    let old = TokenIssuer::new("https://old.example", &key).unwrap();
    let audiences = vec!["https://new.example".to_string()];
    let (token, _) = old.issue(ROBOT, &audiences, 3600, None, at(0)).unwrap();
    let new = TokenIssuer::new("https://new.example", &key).unwrap();
    let check = |issuer: &TokenIssuer| {
        issuer
            .authenticate(&token, &audiences, at(0), &objects)
            .map(|user| user.is_some())
    };
    assert_eq!(check(&new).ok(), Some(false), "somebody else's token");
    let both = new.with_other_issuers(vec!["https://old.example".into()]);
    assert_eq!(check(&both).ok(), Some(true));
    let config = both
        .with_jwks_uri(Some("https://keys.example".into()))
        .openid_configuration("127.0.0.1:6443");
    assert_eq!(config["jwks_uri"], "https://keys.example");
}

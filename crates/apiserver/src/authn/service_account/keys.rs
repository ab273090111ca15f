//! Keys of service account tokens: the one that signs, and those that verify. In the files that kube-apiserver takes: PEM,
//! public keys, certificates or private keys, one or several to a file.
//!
//! Upstream: staging/src/k8s.io/client-go/util/keyutil, pkg/serviceaccount/jwt.go (v1.36).

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation};
use serde_json::{Value, json};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::KeyError;

/// Keys in one file at most.
const KEYS_MAX: usize = 256;

fn wrong(what: &'static str) -> KeyError {
    KeyError(what.into())
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Verifies what the private half signed.
pub(super) struct VerifyingKey {
    /// What tokens call it.
    pub id: String,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
    pub validation: Validation,
    /// As `/openid/v1/jwks` shows it.
    pub jwk: Value,
}

/// Signs tokens.
pub(super) struct SigningKey {
    pub algorithm: Algorithm,
    pub key: EncodingKey,
    pub public: VerifyingKey,
}

impl VerifyingKey {
    /// From a SubjectPublicKeyInfo in DER.
    fn from_spki(der: &[u8]) -> Result<VerifyingKey, KeyError> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|error| KeyError(Box::new(error)))?;
        let id = encoded(&crate::pki::sha256(der));
        let failed = |error: jsonwebtoken::errors::Error| KeyError(Box::new(error));
        let (algorithm, key, jwk) = match info.parsed() {
            Ok(PublicKey::RSA(rsa)) => {
                // Integers in DER begin with a zero where they would else be negative.
                let strip = |bytes: &[u8]| encoded(&bytes[bytes.iter().take_while(|byte| **byte == 0).count()..]);
                let (n, e) = (strip(rsa.modulus), strip(rsa.exponent));
                let key = DecodingKey::from_rsa_components(&n, &e).map_err(failed)?;
                let jwk = json!({"use": "sig", "kty": "RSA", "kid": id, "alg": "RS256", "n": n, "e": e});
                (Algorithm::RS256, key, jwk)
            }
            Ok(PublicKey::EC(point)) => {
                let [4, point @ ..] = point.data() else {
                    return Err(wrong("not a public key on the curve P-256"));
                };
                if point.len() != 64 {
                    return Err(wrong("not a public key on the curve P-256: others are not supported"));
                }
                let (x, y) = (encoded(&point[..32]), encoded(&point[32..]));
                let key = DecodingKey::from_ec_components(&x, &y).map_err(failed)?;
                let jwk = json!({
                    "use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y,
                });
                (Algorithm::ES256, key, jwk)
            }
            _ => return Err(wrong("neither an RSA key nor one on the curve P-256")),
        };
        let mut validation = Validation::new(algorithm);
        // Times and audiences are checked here, by our clock and Kubernetes' rules; the library checks the signature.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        Ok(VerifyingKey {
            id,
            algorithm,
            key,
            validation,
            jwk,
        })
    }
}

/// The keys of a file: public ones, those of certificates, and the public halves of private ones.
pub(super) fn verifying_keys(text: &str) -> Result<Vec<VerifyingKey>, KeyError> {
    let mut keys = Vec::new();
    for block in Pem::iter_from_buffer(text.as_bytes()).take(KEYS_MAX) {
        let block = block.map_err(|error| KeyError(Box::new(error)))?;
        match block.label.as_str() {
            "PUBLIC KEY" => keys.push(VerifyingKey::from_spki(&block.contents)?),
            "CERTIFICATE" => {
                let certificate = X509Certificate::from_der(&block.contents);
                let (_, certificate) = certificate.map_err(|error| KeyError(Box::new(error)))?;
                keys.push(VerifyingKey::from_spki(certificate.public_key().raw)?);
            }
            "RSA PUBLIC KEY" => keys.push(VerifyingKey::from_spki(&rsa_spki(&block.contents))?),
            "PRIVATE KEY" | "EC PRIVATE KEY" | "RSA PRIVATE KEY" => keys.push(signing_key_of(&block)?.public),
            // Files of elliptic curves may name the curve first.
            _ => {}
        }
    }
    match keys.is_empty() {
        true => Err(wrong("data does not contain any valid RSA or ECDSA public keys")),
        false => Ok(keys),
    }
}

/// The first private key of a file.
pub(super) fn signing_key(text: &str) -> Result<SigningKey, KeyError> {
    for block in Pem::iter_from_buffer(text.as_bytes()).take(KEYS_MAX) {
        let block = block.map_err(|error| KeyError(Box::new(error)))?;
        if block.label.ends_with("PRIVATE KEY") {
            return signing_key_of(&block);
        }
    }
    Err(wrong("data does not contain a valid RSA or ECDSA private key"))
}

fn signing_key_of(block: &Pem) -> Result<SigningKey, KeyError> {
    let der = &block.contents;
    let unspecified = |_| wrong("the private key cannot be used");
    if let Ok(pair) = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der) {
        let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(unspecified)?;
        let pkcs8 = pair.to_pkcs8v1().map_err(unspecified)?;
        return Ok(SigningKey {
            algorithm: Algorithm::ES256,
            key: EncodingKey::from_ec_der(pkcs8.as_ref()),
            public: VerifyingKey::from_spki(public.as_ref())?,
        });
    }
    let pair = match rsa::KeyPair::from_pkcs8(der) {
        Ok(pair) => pair,
        Err(_) => rsa::KeyPair::from_der(der)
            .map_err(|_| wrong("neither an RSA key of 2048 bits or more nor one on the curve P-256"))?,
    };
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(unspecified)?;
    let pem = pem_of(block);
    Ok(SigningKey {
        algorithm: Algorithm::RS256,
        key: EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(|error| KeyError(Box::new(error)))?,
        public: VerifyingKey::from_spki(public.as_ref())?,
    })
}

/// The block alone: a file may hold more.
fn pem_of(block: &Pem) -> String {
    use base64::prelude::BASE64_STANDARD;
    let label = &block.label;
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        BASE64_STANDARD.encode(&block.contents)
    )
}

/// Wraps a PKCS#1 public key: SEQUENCE { SEQUENCE { rsaEncryption, NULL }, BIT STRING }.
fn rsa_spki(pkcs1: &[u8]) -> Vec<u8> {
    const ALGORITHM: &[u8] = &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0];
    fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let octets = length.to_be_bytes();
        let significant = &octets[octets.iter().take_while(|octet| **octet == 0).count()..];
        let mut out = vec![tag];
        match u8::try_from(length) {
            Ok(short) if short < 0x80 => out.push(short),
            _ => {
                out.push(0x80 | significant.len() as u8);
                out.extend_from_slice(significant);
            }
        }
        out.extend_from_slice(content);
        out
    }
    let bits = tagged(3, &[&[0], pkcs1].concat());
    tagged(0x30, &[ALGORITHM, &bits].concat())
}

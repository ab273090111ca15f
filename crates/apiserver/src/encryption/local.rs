//! Ciphers whose keys are in the configuration: AES-GCM, AES-CBC and secretbox. The forms of what they make are Kubernetes'.
// Upstream: staging/src/k8s.io/apiserver/pkg/storage/value/encrypt (v1.36)

use aws_lc_rs::aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use crypto_secretbox::aead::{Aead, KeyInit};
use crypto_secretbox::{Key as BoxKey, XSalsa20Poly1305};

const IV_LEN: usize = 16;
const BOX_NONCE_LEN: usize = 24;

/// What was read is not what was written with this key.
#[derive(Debug, thiserror::Error)]
pub(super) enum CipherError {
    #[error("the stored data was shorter than the required size")]
    TooShort,
    #[error("the stored data does not match the key")]
    Mismatch,
    #[error("failed to encrypt")]
    Encrypt,
}

pub(super) enum Cipher {
    Gcm(Gcm),
    Cbc(Box<Cbc>),
    Secretbox(Box<XSalsa20Poly1305>),
}

/// AES-GCM with random nonces.
pub(super) struct Gcm(LessSafeKey);

pub(super) struct Cbc {
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
}

/// Random bytes for keys and nonces.
pub(super) fn random<const N: usize>() -> Result<[u8; N], CipherError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| CipherError::Encrypt)?;
    Ok(bytes)
}

impl Cipher {
    pub(super) fn gcm(key: &[u8]) -> Option<Cipher> {
        Gcm::new(key).map(Cipher::Gcm)
    }

    pub(super) fn cbc(key: &[u8]) -> Option<Cipher> {
        let algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            _ => return None,
        };
        let unbound = || UnboundCipherKey::new(algorithm, key).ok();
        Some(Cipher::Cbc(Box::new(Cbc {
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(unbound()?).ok()?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(unbound()?).ok()?,
        })))
    }

    pub(super) fn secretbox(key: &[u8]) -> Option<Cipher> {
        let key: [u8; 32] = key.try_into().ok()?;
        Some(Cipher::Secretbox(Box::new(XSalsa20Poly1305::new(&BoxKey::from(key)))))
    }

    /// Appends what stands for `plain` under a store key.
    pub(super) fn encrypt(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        match self {
            Cipher::Gcm(gcm) => gcm.encrypt(key, plain, out),
            Cipher::Cbc(cbc) => {
                let iv = random::<IV_LEN>()?;
                let mut body = plain.to_vec();
                let context = EncryptionContext::Iv128(FixedLength::from(iv));
                let encrypted = cbc.encrypting.less_safe_encrypt(&mut body, context);
                encrypted.map_err(|_| CipherError::Encrypt)?;
                out.extend_from_slice(&iv);
                out.extend_from_slice(&body);
                Ok(())
            }
            Cipher::Secretbox(secretbox) => {
                let nonce = random::<BOX_NONCE_LEN>()?;
                let body = secretbox
                    .encrypt(&nonce.into(), plain)
                    .map_err(|_| CipherError::Encrypt)?;
                out.extend_from_slice(&nonce);
                out.extend_from_slice(&body);
                Ok(())
            }
        }
    }

    pub(super) fn decrypt(&self, key: &str, data: &[u8]) -> Result<Vec<u8>, CipherError> {
        match self {
            Cipher::Gcm(gcm) => gcm.decrypt(key, data),
            Cipher::Cbc(cbc) => {
                let (iv, body) = data.split_first_chunk::<IV_LEN>().ok_or(CipherError::TooShort)?;
                let mut body = body.to_vec();
                let context = DecryptionContext::Iv128(FixedLength::from(*iv));
                let plain = cbc.decrypting.decrypt(&mut body, context);
                let length = plain.map_err(|_| CipherError::Mismatch)?.len();
                body.truncate(length);
                Ok(body)
            }
            Cipher::Secretbox(secretbox) => {
                let split = data.split_first_chunk::<BOX_NONCE_LEN>();
                let (nonce, body) = split.ok_or(CipherError::TooShort)?;
                secretbox
                    .decrypt(&(*nonce).into(), body)
                    .map_err(|_| CipherError::Mismatch)
            }
        }
    }
}

impl Gcm {
    pub(super) fn new(key: &[u8]) -> Option<Gcm> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return None,
        };
        Some(Gcm(LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?)))
    }

    /// The store key is authenticated too: what is moved to another one can't be read.
    pub(super) fn encrypt(&self, key: &str, plain: &[u8], out: &mut Vec<u8>) -> Result<(), CipherError> {
        let nonce = random::<NONCE_LEN>()?;
        let mut body = plain.to_vec();
        let aad = Aad::from(key.as_bytes());
        let sealed = self
            .0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body);
        sealed.map_err(|_| CipherError::Encrypt)?;
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&body);
        Ok(())
    }

    pub(super) fn decrypt(&self, key: &str, data: &[u8]) -> Result<Vec<u8>, CipherError> {
        let (nonce, body) = data.split_first_chunk::<NONCE_LEN>().ok_or(CipherError::TooShort)?;
        let mut body = body.to_vec();
        let (nonce, aad) = (Nonce::assume_unique_for_key(*nonce), Aad::from(key.as_bytes()));
        let plain = self
            .0
            .open_in_place(nonce, aad, &mut body)
            .map_err(|_| CipherError::Mismatch)?;
        let length = plain.len();
        body.truncate(length);
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encrypted_can_be_read_with_the_same_key_alone() {
        let kinds: [(&str, fn(&[u8]) -> Option<Cipher>, &[usize]); 3] = [
            ("gcm", Cipher::gcm, &[16, 24, 32]),
            ("cbc", Cipher::cbc, &[16, 24, 32]),
            ("secretbox", Cipher::secretbox, &[32]),
        ];
        for (name, make, sizes) in kinds {
            for &size in sizes {
                let (cipher, other) = (make(&vec![1; size]).unwrap(), make(&vec![2; size]).unwrap());
                for plain in [&b""[..], b"hello", &[7; 1000]] {
                    let mut sealed = Vec::new();
                    cipher.encrypt("/registry/secrets/a/b", plain, &mut sealed).unwrap();
                    assert_eq!(
                        cipher.decrypt("/registry/secrets/a/b", &sealed).unwrap(),
                        plain,
                        "{name}"
                    );
                    // CBC has no authentication: another key makes rubbish of it, or an error.
                    let wrong = other.decrypt("/registry/secrets/a/b", &sealed);
                    assert!(wrong.map_or(true, |found| found != plain || plain.is_empty()), "{name}");
                }
            }
            assert!(make(&[0; 15]).is_none());
        }
        let cipher = Cipher::gcm(&[1; 32]).unwrap();
        let mut sealed = Vec::new();
        cipher.encrypt("/a", b"x", &mut sealed).unwrap();
        assert!(cipher.decrypt("/b", &sealed).is_err());
        assert!(cipher.decrypt("/a", &sealed[..5]).is_err());
    }

    /// A box that NaCl made (the example of its documentation, as golang.org/x/crypto/nacl/secretbox tests it).
    #[test]
    fn secretbox_is_nacl_s() {
        let cipher = Cipher::secretbox(&[1; 32]).unwrap();
        let body = "8442bc313f4626f1359e3b50122b6ce6fe66ddfe7d39d14e637eb4fd5b45beadab55198df6ab5368439792a23c87db70acb6156dc5ef957ac04f6276cf6093b8\
                    4be77ff0849cc33e34b7254d5a8f65ad";
        let bytes: Vec<u8> = (0..body.len() / 2)
            .map(|i| u8::from_str_radix(&body[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        let data = [&[2u8; 24][..], &bytes].concat();
        assert_eq!(cipher.decrypt("", &data).unwrap(), [3; 64]);
    }
}

//! Logging in with SCRAM-SHA-256 (RFC 5802, RFC 7677).

use crate::wire::Client;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::spec::BinarySubtype;
use bson::{Binary, Document, doc};
use mw_testbed::{ClusterError, Result};
use sha2::{Digest, Sha256};

const BLOCK_BYTES: usize = 64;
const MECHANISM: &str = "SCRAM-SHA-256";
/// Only has to differ between logins of one password over an untrusted network; this is loopback.
const CLIENT_NONCE: &str = "mobile-world-testbed";

type Hash = [u8; 32];

pub(crate) fn log_in(client: &mut Client, user: &str, password: &str) -> Result<()> {
    let binary = |text: String| Binary { subtype: BinarySubtype::Generic, bytes: text.into_bytes() };
    let first_bare = format!("n={user},r={CLIENT_NONCE}");
    let start = doc! {
        "saslStart": 1, "mechanism": MECHANISM, "payload": binary(format!("n,,{first_bare}")),
        "options": { "skipEmptyExchange": true },
    };
    let reply = client.run("admin", start)?;
    let server_first = payload(&reply)?;
    let last = client_final(&first_bare, &server_first, password)
        .ok_or_else(|| ClusterError::Options("the server's first SCRAM message is malformed".to_owned()))?;
    let conversation = reply.get("conversationId").cloned().unwrap_or(bson::Bson::Int32(1));
    let finish = doc! { "saslContinue": 1, "conversationId": conversation, "payload": binary(last) };
    client.run("admin", finish).map(drop)
}

fn payload(reply: &Document) -> Result<String> {
    let bytes = reply.get_binary_generic("payload").cloned().unwrap_or_default();
    String::from_utf8(bytes)
        .map_err(|_| ClusterError::Options("a SCRAM message of the server is not text".to_owned()))
}

fn client_final(first_bare: &str, server_first: &str, password: &str) -> Option<String> {
    let field = |name: &str| server_first.split(',').find_map(|it| it.strip_prefix(name));
    let (nonce, salt, rounds) = (field("r=")?, BASE64.decode(field("s=")?).ok()?, field("i=")?.parse().ok()?);
    let without_proof = format!("c=biws,r={nonce}");
    let salted = pbkdf2(password.as_bytes(), &salt, rounds);
    let client_key = hmac(&salted, b"Client Key");
    let stored_key: Hash = Sha256::digest(client_key).into();
    let signature = hmac(&stored_key, format!("{first_bare},{server_first},{without_proof}").as_bytes());
    let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect();
    Some(format!("{without_proof},p={}", BASE64.encode(proof)))
}

/// One block of output, which is what SHA-256 needs.
fn pbkdf2(password: &[u8], salt: &[u8], rounds: u32) -> Hash {
    let mut block = hmac(password, &[salt, &1_u32.to_be_bytes()].concat());
    let mut sum = block;
    for _ in 1..rounds {
        block = hmac(password, &block);
        sum.iter_mut().zip(block).for_each(|(byte, other)| *byte ^= other);
    }
    sum
}

fn hmac(key: &[u8], message: &[u8]) -> Hash {
    let mut block = [0; BLOCK_BYTES];
    let hashed: Hash;
    let key = if key.len() > BLOCK_BYTES {
        hashed = Sha256::digest(key).into();
        &hashed
    } else {
        key
    };
    block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677, section 3.
    #[test]
    fn the_proof_is_that_of_the_standard() {
        let first_bare = "n=user,r=rOprNGfwEbeRWgbNEkqO";
        let server_first =
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(
            client_final(first_bare, server_first, "pencil").unwrap(),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(client_final(first_bare, "e=other-error", "pencil"), None);
    }
}

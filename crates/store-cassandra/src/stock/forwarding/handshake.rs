//! The handshake of the internal listener: both sides prove that they know the token of the shop, and neither sends it.
//!
//! The listener sends a nonce; the caller answers with a nonce of its own and with an HMAC over both and over the two process
//! ids; the listener answers with another one. So a program that happens to listen on the address of a dead process learns
//! nothing, and a process that took over the address is not mistaken for the one that was meant. The frames that follow are
//! neither signed nor encrypted: the listener belongs into a private network.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::Uuid;

use super::connection::{LinkError, read_frame, write_frame};
use super::frames::{Frame, Stamp};

pub(super) const NONCE_BYTES: usize = 32;
pub(super) const PROOF_BYTES: usize = 32;
/// The block of SHA-256, to which HMAC pads its key.
const BLOCK_BYTES: usize = 64;

/// The secret that the processes of a shop share.
#[derive(Clone)]
pub(crate) struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Which side a proof is of, so that no proof can be sent back to its maker.
#[derive(Debug, Clone, Copy)]
enum Side {
    Caller,
    Listener,
}

/// What both sides know when they make their proofs.
#[derive(Debug, Clone, Copy)]
struct Transcript {
    listener: Uuid,
    listener_nonce: [u8; NONCE_BYTES],
    caller: Uuid,
    caller_nonce: [u8; NONCE_BYTES],
}

impl Token {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// HMAC-SHA-256 (RFC 2104) over the transcript.
    fn proof(&self, side: Side, transcript: &Transcript) -> [u8; PROOF_BYTES] {
        let mut key = [0_u8; BLOCK_BYTES];
        let digest = Sha256::digest(&self.0);
        let bytes: &[u8] = if self.0.len() > BLOCK_BYTES { &digest } else { &self.0 };
        for (into, byte) in key.iter_mut().zip(bytes) {
            *into = *byte;
        }
        let side: &[u8] = match side {
            Side::Caller => b"mw caller",
            Side::Listener => b"mw listener",
        };
        let inner = Sha256::new()
            .chain_update(key.map(|byte| byte ^ 0x36))
            .chain_update(side)
            .chain_update(transcript.listener.as_bytes())
            .chain_update(transcript.listener_nonce)
            .chain_update(transcript.caller.as_bytes())
            .chain_update(transcript.caller_nonce)
            .finalize();
        let outer = Sha256::new().chain_update(key.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize();
        outer.into()
    }

    /// Compares in constant time.
    fn check(&self, side: Side, transcript: &Transcript, proof: &[u8; PROOF_BYTES]) -> Result<(), LinkError> {
        let expected = self.proof(side, transcript);
        if bool::from(expected.ct_eq(proof)) { Ok(()) } else { Err(LinkError::WrongToken) }
    }
}

fn nonce() -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    let halves = [Uuid::new_v4(), Uuid::new_v4()];
    for (into, byte) in nonce.iter_mut().zip(halves.iter().flat_map(Uuid::as_bytes)) {
        *into = *byte;
    }
    nonce
}

/// The listener's side; returns the process that called.
pub(super) async fn accept<S>(
    stream: &mut S,
    token: &Token,
    own: Uuid,
    stamp: impl Fn() -> Stamp,
) -> Result<Uuid, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let listener_nonce = nonce();
    write_frame(stream, &Frame::Challenge { process: own, nonce: listener_nonce }).await?;
    let Frame::Hello { process: caller, nonce: caller_nonce, proof } = read_frame(stream).await? else {
        return Err(LinkError::UnexpectedFrame);
    };
    let transcript = Transcript { listener: own, listener_nonce, caller, caller_nonce };
    token.check(Side::Caller, &transcript, &proof)?;
    let proof = token.proof(Side::Listener, &transcript);
    write_frame(stream, &Frame::Welcome { proof, stamp: stamp() }).await?;
    Ok(caller)
}

/// The caller's side; returns the first stamp of the listener.
pub(super) async fn initiate<S>(
    stream: &mut S,
    token: &Token,
    own: Uuid,
    meant: Uuid,
) -> Result<Stamp, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Frame::Challenge { process: listener, nonce: listener_nonce } = read_frame(stream).await? else {
        return Err(LinkError::UnexpectedFrame);
    };
    if listener != meant {
        return Err(LinkError::OtherProcess(listener));
    }
    let caller_nonce = nonce();
    let transcript = Transcript { listener, listener_nonce, caller: own, caller_nonce };
    let proof = token.proof(Side::Caller, &transcript);
    write_frame(stream, &Frame::Hello { process: own, nonce: caller_nonce, proof }).await?;
    let Frame::Welcome { proof, stamp } = read_frame(stream).await? else {
        return Err(LinkError::UnexpectedFrame);
    };
    token.check(Side::Listener, &transcript, &proof)?;
    Ok(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Uuid = Uuid::from_u128(1);
    const CALLER: Uuid = Uuid::from_u128(2);

    type Ends = (Result<Uuid, LinkError>, Result<Stamp, LinkError>);

    async fn shake(listener_token: &str, caller_token: &str, meant: Uuid) -> Ends {
        let (mut here, mut there) = tokio::io::duplex(1_024);
        let (listener_token, caller_token) = (Token::new(listener_token), Token::new(caller_token));
        let accepted = async move { accept(&mut here, &listener_token, OWNER, || 7).await };
        let initiated = async move { initiate(&mut there, &caller_token, CALLER, meant).await };
        tokio::join!(accepted, initiated)
    }

    #[tokio::test]
    async fn processes_with_the_same_token_are_connected() {
        let (accepted, initiated) = shake("the token of the shop", "the token of the shop", OWNER).await;
        assert_eq!((accepted.unwrap(), initiated.unwrap()), (CALLER, 7));
    }

    #[tokio::test]
    async fn another_token_is_refused() {
        let (accepted, initiated) = shake("the token of the shop", "another token", OWNER).await;
        assert!(matches!(accepted, Err(LinkError::WrongToken)), "{accepted:?}");
        assert!(initiated.is_err());
    }

    #[tokio::test]
    async fn a_process_that_took_over_the_address_is_refused() {
        let (accepted, initiated) = shake("token", "token", Uuid::from_u128(9)).await;
        assert!(matches!(initiated, Err(LinkError::OtherProcess(OWNER))), "{initiated:?}");
        assert!(accepted.is_err());
    }

    #[tokio::test]
    async fn a_listener_that_repeats_the_proof_of_its_caller_is_refused() {
        let (mut here, mut there) = tokio::io::duplex(1_024);
        let mirror = async move {
            write_frame(&mut here, &Frame::Challenge { process: OWNER, nonce: [1; NONCE_BYTES] })
                .await
                .unwrap();
            let Frame::Hello { proof, .. } = read_frame(&mut here).await.unwrap() else { panic!("no hello") };
            write_frame(&mut here, &Frame::Welcome { proof, stamp: 0 }).await.unwrap();
        };
        let token = Token::new("token");
        let initiated = async move { initiate(&mut there, &token, CALLER, OWNER).await };
        let ((), initiated) = tokio::join!(mirror, initiated);
        assert!(matches!(initiated, Err(LinkError::WrongToken)), "{initiated:?}");
    }

    #[test]
    fn proof_is_the_hmac_of_rfc_2104() {
        // Independent of the transcript's layout: a long key is hashed first, and the two sides differ.
        let transcript = Transcript {
            listener: OWNER,
            listener_nonce: [3; NONCE_BYTES],
            caller: CALLER,
            caller_nonce: [4; NONCE_BYTES],
        };
        let long = "k".repeat(100);
        let hashed = Token(Sha256::digest(long.as_bytes()).to_vec());
        let token = Token::new(&long);
        let caller = token.proof(Side::Caller, &transcript);
        assert_eq!(caller, hashed.proof(Side::Caller, &transcript));
        assert_ne!(caller, token.proof(Side::Listener, &transcript));
        let other = Transcript { caller_nonce: [5; NONCE_BYTES], ..transcript };
        assert_ne!(caller, token.proof(Side::Caller, &other));
        assert_eq!(format!("{token:?}"), "Token(…)");
    }
}

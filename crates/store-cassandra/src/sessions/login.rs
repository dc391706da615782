//! Login: the session becomes the user's, and the guest's cart is merged into the user's, under one intent.

use mw_codec::intents::login::{self as codec, LoginIntent};
use mw_codec::intents::merge::MergeSpec;
use mw_domain::{Owner, Session};
use mw_store::sessions::{LoggedIn, Login};
use mw_store::{Refusal, Result, StoreError};
use uuid::Uuid;

use super::{SUBJECT, lock_key};
use crate::CassandraStore;
use crate::recovery::intents::{Intent, Kind};
use crate::revision::{CasLoop, finish_paxos};

impl CassandraStore {
    /// Logs in under `op_id`; `is_shared` if another request or process may run the same operation.
    pub(super) async fn login_under(
        &self,
        op_id: Uuid,
        is_shared: bool,
        command: &Login,
    ) -> Result<LoggedIn> {
        let merge = MergeSpec {
            user: Owner::User(command.user_id.clone()),
            guest: Owner::Session(command.session_id.clone()),
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            expected_version: None,
            lifetime: command.cart_lifetime,
            now: command.now,
        };
        let mut intent = None;
        let session = match self.bind_session(op_id, command, &merge, &mut intent).await {
            Ok(session) => session,
            Err(error) => {
                self.close_failed_login(intent, &error).await;
                return Err(error);
            }
        };
        // Crash here: the session is the user's, the cart is the guest's; `recover_login` merges it. Without an intent
        // there was no cart to merge.
        let merged = self.merge_under(op_id, is_shared, &merge, intent).await;
        let merged = merged.map_err(StoreError::after_first_effect)?;
        // Crash here: the key has no outcome; a repeated request binds again, finds the merge's markers and stores it.
        Ok(LoggedIn { session, cart: merged.cart })
    }

    /// Makes the session the user's. If there is a cart to merge, an intent is begun before.
    async fn bind_session(
        &self,
        op_id: Uuid,
        command: &Login,
        merge: &MergeSpec,
        intent: &mut Option<Intent>,
    ) -> Result<Session> {
        let now = command.now;
        let mut cas_loop = CasLoop::of(SUBJECT);
        let _lock = self.locks.partition(&lock_key(&command.session_id)).await;
        loop {
            let (stored, guest) = futures_util::try_join!(
                self.read_session(&command.session_id),
                self.read_active_cart(&merge.guest, now)
            )?;
            let before = stored.live_at(now).ok_or(Refusal::SessionNotFound)?;
            if before.user_id.as_ref().is_some_and(|user| *user != command.user_id) {
                return Err(Refusal::SessionBound.into());
            }
            let mut session = before.clone();
            session.user_id = Some(command.user_id.clone());
            session.active(now, command.session_lifetime);
            // Crash here: nothing was written; at most the key is claimed, and a repeated request runs again.
            if intent.is_none() && guest.is_some_and(|guest| !guest.lines.is_empty()) {
                let session_id = command.session_id.clone();
                let payload = codec::encode(&LoginIntent { session_id, merge: merge.clone() });
                *intent = Some(self.intents.begin(&self.cql, Kind::Login, op_id, payload).await?);
            }
            // Crash here: an intent for a session that is not the user's; recovery drops it once no update can be in
            // flight.
            self.index_session(Some(before), &session, now).await?;
            // Crash here: as before, with an index row that readers skip and its TTL removes.
            let stamp = self.session_stamp(&stored);
            let update = stored.save(&self.sessions, &session, now, stamp);
            if update.apply(&self.cql, &mut cas_loop).await? {
                // Crash here: the session is the user's and not in the feed; `recover_login` reports it, or the next change does.
                self.report_change(&stored, &session, (now, stamp)).await?;
                return Ok(session);
            }
        }
    }

    /// Ends the intent of a login that could not bind the session, or leaves it to recovery if that is not certain.
    async fn close_failed_login(&self, intent: Option<Intent>, error: &StoreError) {
        match (intent, error) {
            (None, _) => {}
            (Some(intent), StoreError::Ambiguous(_)) => self.intents.abandon(intent),
            (Some(intent), _) => self.intents.complete(&self.cql, intent).await,
        }
    }

    /// Recovers an orphaned or abandoned login: if the session is the user's, the cart is merged. Every step is
    /// idempotent, so a crash in here leaves a login that the next process recovers in the same way.
    pub(crate) async fn recover_login(&self, op_id: Uuid, payload: &[u8]) -> Result<()> {
        let LoginIntent { session_id, merge } = codec::decode(payload)?;
        // A merge that has closed the guest's cart is finished even if the session has ended since.
        if self.recover_closed_merge(&merge.guest, op_id).await? {
            return Ok(());
        }
        // The update that binds the session may be in a Paxos round that its coordinator left: complete it before
        // reading.
        finish_paxos(&self.cql, &self.sessions.serial_revision, (session_id.as_str(),)).await?;
        let stored = self.read_session(&session_id).await?;
        let is_users =
            |session: &&Session| session.user_id.clone().map(Owner::User).as_ref() == Some(&merge.user);
        let Some(session) = stored.session.as_ref().filter(is_users) else {
            return self.intents.keep_while_in_flight(op_id);
        };
        self.report_change(&stored, session, (session.last_activity, stored.newest_stamp())).await?;
        // Crash here: the session is the user's and nothing of the merge is done; the next process starts from the top.
        self.merge_under(op_id, true, &merge, None).await.map(drop)
    }
}

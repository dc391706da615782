//! Merging a guest's cart into a user's: two partitions, so two conditional changes and an intent around them.
//!
//! The guest's cart is closed first, together with a marker that says where its lines go and which lines they are. Then
//! the user's partition decides: one change that takes the lines in and leaves a marker with the answer, or a marker that
//! says no because the user's cart was not the expected one, after which the guest has the cart back. Whoever comes
//! upon a merge that is half done finishes it, and finds the same answer.

use mw_codec::carts::{read as read_cart, read_owner, write as write_cart, write_owner};
use mw_codec::once::{decode_outcome, encode_outcome};
use mw_codec::{Damaged, Reader, Writer};
use mw_domain::cart::CartLifetime;
use mw_domain::{Cart, CartId, CartStatus, MergeMode, Owner, SessionId, Timestamp};
use mw_store::carts::Merged;
use mw_store::once::Outcome;
use mw_store::{Refusal, Result, StoreError};
use uuid::Uuid;

use super::rows::{Change, Kept, Partition, Stored, owner_kind, place};
use super::{check_version, turn};
use crate::CassandraStore;
use crate::guard::{Rounds, half_done, see_through};
use crate::intents::{Intent, Kind};

/// The marker of a user's partition that says no.
const REFUSED: &[u8] = &[];

/// Who merges with whom, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parties {
    pub(crate) user: Owner,
    pub(crate) guest: Owner,
    pub(crate) mode: MergeMode,
    pub(crate) new_cart_id: CartId,
    pub(crate) expected_version: Option<u64>,
    pub(crate) lifetime: CartLifetime,
    pub(crate) now: Timestamp,
}

/// A merge whose guest's cart is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Begun {
    parties: Parties,
    /// As it was before.
    guest: Cart,
    /// The user's cart, as far as it was known then.
    target: CartId,
}

impl CassandraStore {
    /// Merges under an operation that others may do at the same time where it is `shared`. An intent that is open already
    /// is the merge's from now on.
    pub(crate) async fn merge_under(
        &self,
        op_id: Uuid,
        shared: bool,
        parties: &Parties,
        mut intent: Option<Intent>,
    ) -> Result<Merged> {
        let merged = {
            let _turns = self.locks.two(&turn(&parties.user), &turn(&parties.guest)).await;
            self.try_merge(op_id, shared, parties, &mut intent).await
        };
        if let Some(intent) = intent {
            match &merged {
                Ok(_) | Err(StoreError::Refused(_)) => self.end_soon(intent),
                Err(_) => self.intents.leave(intent),
            }
        }
        merged
    }

    async fn try_merge(
        &self,
        op_id: Uuid,
        shared: bool,
        parties: &Parties,
        intent: &mut Option<Intent>,
    ) -> Result<Merged> {
        let Parties { lifetime, now, .. } = parties;
        let mut rounds = Rounds::of("a guest's cart");
        loop {
            let (user, guest) =
                futures_util::try_join!(self.partition(&parties.user), self.partition(&parties.guest))?;
            if shared && let Some(begun) = self.begun(&parties.guest, op_id).await? {
                return self.decide(op_id, &begun, None).await.map_err(half_done);
            }
            let own = user.active_at(*now);
            check_version(own, parties.expected_version)?;
            let Some(before) = guest.active_at(*now).filter(|stored| !stored.cart.lines.is_empty()) else {
                let Some(last) = guest.last_merge else {
                    return Ok(Merged { cart: user.into_active(*now), changes: Vec::new() });
                };
                match self.finish_found(&parties.guest, last).await? {
                    // The user's cart may have been read before the lines of that merge came.
                    Found::Merged => {
                        let cart = self.active(&parties.user, *now).await?;
                        return Ok(Merged { cart, changes: Vec::new() });
                    }
                    Found::GivenBack => continue,
                }
            };
            if intent.is_none() {
                let payload = encode_session(&parties.guest);
                *intent = Some(self.intents.begin(&self.cql, Kind::Merge, op_id, payload).await?);
            }
            let target = own.map_or(parties.new_cart_id, |own| own.cart.cart_id);
            let begun = Begun { parties: parties.clone(), guest: before.cart.clone(), target };
            let mut closed = before.cart.clone();
            closed.merged_into = Some(target);
            closed.abandon(*now, lifetime);
            let kept = Kept::of(&parties.guest, lifetime, *now);
            let mut change = Change::new(&self.carts, &guest, None, kept);
            change.cart(Some(before), &closed, Some(op_id));
            change.marker(op_id, begun.encode());
            if change.settle(&self.cql, &mut rounds).await? {
                return self.decide(op_id, &begun, Some(user)).await.map_err(half_done);
            }
        }
    }

    /// The second half. `known` is the user's partition as it was read before the guest's cart was closed: nobody can have
    /// decided in it yet.
    async fn decide(&self, op_id: Uuid, begun: &Begun, mut known: Option<Partition>) -> Result<Merged> {
        let Parties { user: owner, mode, new_cart_id, expected_version, lifetime, now, .. } = &begun.parties;
        let kept = Kept::of(owner, lifetime, *now);
        let mut rounds = Rounds::of("a cart");
        loop {
            let user = if let Some(user) = known.take() {
                user
            } else {
                let user = self.partition(owner).await?;
                if let Some(outcome) = self.outcome_of(owner, op_id).await? {
                    return self.decided(op_id, begun, &outcome).await;
                }
                user
            };
            let own = user.active_at(*now);
            if check_version(own, *expected_version).is_err() {
                let mut change = Change::new(&self.carts, &user, user.pointer, kept);
                change.marker(op_id, REFUSED.to_vec());
                if change.settle(&self.cql, &mut rounds).await? {
                    return self.decided(op_id, begun, REFUSED).await;
                }
                continue;
            }
            let mut cart =
                own.map_or_else(|| Cart::open(*new_cart_id, owner.clone(), *now), |own| own.cart.clone());
            let changes = cart.take_in(&mut begun.guest.clone(), *mode, *now, lifetime);
            let mut change = Change::new(&self.carts, &user, Some(place(&cart)), kept);
            if !changes.is_empty() {
                self.note_day(own, &cart, kept).await?;
                change.cart(own, &cart, None);
            }
            let merged = Merged { cart: Some(cart), changes };
            change.marker(op_id, encode_outcome(&Outcome::Merged(merged.clone())));
            if change.settle(&self.cql, &mut rounds).await? {
                self.follow_merge(op_id, begun, &merged).await?;
                return Ok(merged);
            }
        }
    }

    /// Gives the answer that the user's partition has, and does what is left to do.
    async fn decided(&self, op_id: Uuid, begun: &Begun, outcome: &[u8]) -> Result<Merged> {
        if outcome == REFUSED {
            self.give_back(op_id, begun).await?;
            let current = self.active(&begun.parties.user, begun.parties.now).await?;
            return Err(Refusal::CartVersion { current }.into());
        }
        let Outcome::Merged(merged) = decode_outcome(outcome)? else {
            return Err(StoreError::Corrupt(format!("the outcome of {op_id}")));
        };
        self.follow_merge(op_id, begun, &merged).await?;
        Ok(merged)
    }

    /// What follows from the lines being in the user's cart: their history, and where the guest's cart says they are.
    async fn follow_merge(&self, op_id: Uuid, begun: &Begun, merged: &Merged) -> Result<()> {
        let Some(cart) = &merged.cart else { return Ok(()) };
        self.note_changes(&begun.parties.user, cart.merge_history(&merged.changes)).await?;
        if cart.cart_id == begun.target {
            return Ok(());
        }
        self.change_closed(op_id, begun, |closed, _| {
            let mut moved = closed.cart.clone();
            moved.merged_into = Some(cart.cart_id);
            Rewritten { carts: vec![moved], merge_id: Some(op_id), open: None }
        })
        .await
    }

    /// The guest's cart is open again as it was; where the guest has opened another, that one takes the lines.
    async fn give_back(&self, op_id: Uuid, begun: &Begun) -> Result<()> {
        let Parties { lifetime, now, .. } = &begun.parties;
        self.change_closed(op_id, begun, |closed, open| match open {
            None => Rewritten {
                carts: vec![begun.guest.clone()],
                merge_id: None,
                open: Some(place(&begun.guest)),
            },
            Some(open) => {
                let (mut open, mut closed) = (open.cart.clone(), closed.cart.clone());
                let changes = open.take_in(&mut begun.guest.clone(), MergeMode::User, *now, lifetime);
                closed.merged_into = Some(open.cart_id);
                let at = place(&open);
                let carts = if changes.is_empty() { vec![closed] } else { vec![closed, open] };
                Rewritten { carts, merge_id: None, open: Some(at) }
            }
        })
        .await
    }

    /// Changes the guest's cart that the merge closed, unless that has been done.
    async fn change_closed(
        &self,
        op_id: Uuid,
        begun: &Begun,
        rewrite: impl Fn(&Stored, Option<&Stored>) -> Rewritten + Send + Sync,
    ) -> Result<()> {
        let Parties { guest: owner, lifetime, now, .. } = &begun.parties;
        let kept = Kept::of(owner, lifetime, *now);
        let mut rounds = Rounds::of("a guest's cart");
        loop {
            let guest = self.partition(owner).await?;
            let closed = self.cart_at(owner, place(&begun.guest)).await?;
            let by_this = closed.filter(|closed| closed.merge_id == Some(op_id));
            let Some(closed) = by_this.filter(|closed| closed.cart.status == CartStatus::Abandoned) else {
                return Ok(());
            };
            let open = guest.pointer.and_then(|at| guest.open_at(at));
            let Rewritten { carts, merge_id, open: pointer } = rewrite(&closed, open);
            let mut change = Change::new(&self.carts, &guest, pointer.or(guest.pointer), kept);
            for cart in &carts {
                let before = if cart.cart_id == closed.cart.cart_id { Some(&closed) } else { open };
                let merge_id = merge_id.filter(|_| cart.cart_id == closed.cart.cart_id);
                change.cart(before, cart, merge_id);
            }
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(());
            }
        }
    }

    /// What a guest's partition says of a merge; `None` where it never closed a cart.
    async fn begun(&self, guest: &Owner, op_id: Uuid) -> Result<Option<Begun>> {
        let bytes = self.outcome_of(guest, op_id).await?;
        Ok(bytes.map(|bytes| Begun::decode(&bytes)).transpose()?)
    }

    /// Finishes the merge that closed a guest's cart, if it is not finished.
    async fn finish_found(&self, guest: &Owner, op_id: Uuid) -> Result<Found> {
        // Its marker goes long after it is finished.
        let Some(begun) = self.begun(guest, op_id).await? else { return Ok(Found::Merged) };
        match self.outcome_of(&begun.parties.user, op_id).await? {
            Some(outcome) if outcome != REFUSED => Ok(Found::Merged),
            _ => self.finish_begun(op_id, &begun).await,
        }
    }

    async fn finish_begun(&self, op_id: Uuid, begun: &Begun) -> Result<Found> {
        match self.decide(op_id, begun, None).await {
            Ok(_) => Ok(Found::Merged),
            Err(StoreError::Refused(_)) => Ok(Found::GivenBack),
            Err(error) => Err(error),
        }
    }

    /// Finishes what a process left of a merge.
    pub(crate) async fn finish_merge(&self, op_id: Uuid, payload: &[u8]) -> Result<()> {
        let guest = decode_session(payload)?;
        if self.finish_closed(&guest, op_id).await? { Ok(()) } else { self.intents.wait_for(op_id) }
    }

    /// Finishes a merge if it has closed the guest's cart; answers whether it has.
    pub(crate) async fn finish_closed(&self, guest: &Owner, op_id: Uuid) -> Result<bool> {
        see_through(&self.cql, &self.carts.look, (owner_kind(guest), guest.id())).await?;
        let Some(begun) = self.begun(guest, op_id).await? else { return Ok(false) };
        self.finish_begun(op_id, &begun).await?;
        Ok(true)
    }
}

/// What became of a merge that somebody began.
enum Found {
    Merged,
    /// The user's cart was not the expected one: the guest has the lines.
    GivenBack,
}

/// Carts of a guest's partition as they become, and which of them is open.
struct Rewritten {
    carts: Vec<Cart>,
    merge_id: Option<Uuid>,
    open: Option<(Timestamp, CartId)>,
}

fn encode_session(guest: &Owner) -> Vec<u8> {
    let mut writer = Writer::new(guest.id().len() + 4);
    writer.text(guest.id());
    writer.done()
}

fn decode_session(bytes: &[u8]) -> Result<Owner, Damaged> {
    let mut reader = Reader::new(bytes, "the intent of a merge")?;
    let session_id = reader.id(SessionId::parse)?;
    reader.end()?;
    Ok(Owner::Session(session_id))
}

impl Parties {
    pub(crate) fn write(&self, writer: &mut Writer) {
        write_owner(writer, &self.user);
        write_owner(writer, &self.guest);
        writer.byte(match self.mode {
            MergeMode::Sum => 0,
            MergeMode::Max => 1,
            MergeMode::Guest => 2,
            MergeMode::User => 3,
        });
        writer.bytes(self.new_cart_id.as_bytes());
        writer.optional(self.expected_version.as_ref(), |writer, version| writer.unsigned(*version));
        writer.signed(self.lifetime.user_ms);
        writer.signed(self.lifetime.guest_ms);
        writer.time(self.now);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            user: read_owner(reader)?,
            guest: read_owner(reader)?,
            mode: match reader.byte()? {
                0 => MergeMode::Sum,
                1 => MergeMode::Max,
                2 => MergeMode::Guest,
                3 => MergeMode::User,
                _ => return Err(reader.damaged()),
            },
            new_cart_id: CartId::from_bytes(reader.array()?),
            expected_version: reader.optional(Reader::unsigned)?,
            lifetime: CartLifetime { user_ms: reader.signed()?, guest_ms: reader.signed()? },
            now: reader.time()?,
        })
    }
}

impl Begun {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(256);
        self.parties.write(&mut writer);
        writer.bytes(self.target.as_bytes());
        write_cart(&mut writer, &self.guest);
        writer.done()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes, "a merge")?;
        let parties = Parties::read(&mut reader)?;
        let target = CartId::from_bytes(reader.array()?);
        let guest = read_cart(&mut reader)?;
        reader.end()?;
        Ok(Self { parties, guest, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::{ProductId, UserId};

    #[test]
    fn a_merge_reads_back() {
        let guest = Owner::Session(SessionId::parse("s").unwrap());
        let lifetime = CartLifetime { user_ms: 2_592_000_000, guest_ms: 86_400_000 };
        let now = Timestamp::from_millis(1_773_144_000_000);
        let mut cart = Cart::open(CartId::new(Uuid::from_u128(7)), guest.clone(), now);
        cart.set_line(ProductId::parse("p").unwrap(), 3, now, &lifetime).unwrap();
        for (mode, expected_version) in [
            (MergeMode::Sum, None),
            (MergeMode::Max, Some(0)),
            (MergeMode::Guest, Some(9)),
            (MergeMode::User, Some(u64::MAX)),
        ] {
            let parties = Parties {
                user: Owner::User(UserId::parse("u").unwrap()),
                guest: guest.clone(),
                mode,
                new_cart_id: CartId::new(Uuid::from_u128(8)),
                expected_version,
                lifetime,
                now,
            };
            let begun = Begun { parties, guest: cart.clone(), target: CartId::new(Uuid::from_u128(9)) };
            assert_eq!(Begun::decode(&begun.encode()), Ok(begun));
        }
        assert_eq!(decode_session(&encode_session(&guest)), Ok(guest));
    }
}

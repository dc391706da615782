//! The intent of merging a guest's cart into a user's, and the marker of a merge that has closed the guest's cart.

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartId, MergeMode, Owner, Timestamp};

use crate::carts::{read as read_cart, read_owner, write as write_cart, write_owner};
use crate::{Damaged, Reader, Writer};

/// Which carts are merged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeSpec {
    pub user: Owner,
    pub guest: Owner,
    pub mode: MergeMode,
    /// The id of the user's cart, if the user has none.
    pub new_cart_id: CartId,
    /// The version that the user's cart must have.
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
}

/// A merge that has closed the guest's cart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeMarker {
    pub spec: MergeSpec,
    /// The guest's cart before it was closed.
    pub guest_cart: Cart,
    /// The cart that the closed cart names as the one it was merged into. The user's partition may decide for another.
    pub target: CartId,
}

/// The intent of a merge names only the guest. The rest is in the marker of the guest's partition, once the merge has
/// closed the guest's cart.
pub fn encode(guest: &Owner) -> Vec<u8> {
    let mut writer = Writer::new(guest.id().len() + 4);
    write_owner(&mut writer, guest);
    writer.done()
}

pub fn decode(bytes: &[u8]) -> Result<Owner, Damaged> {
    let mut reader = Reader::new(bytes, "merge intent")?;
    let guest = read_owner(&mut reader)?;
    reader.end()?;
    Ok(guest)
}

pub fn encode_marker(marker: &MergeMarker) -> Vec<u8> {
    let mut writer = Writer::new(256);
    write_spec(&mut writer, &marker.spec);
    writer.bytes(marker.target.as_bytes());
    write_cart(&mut writer, &marker.guest_cart);
    writer.done()
}

pub fn decode_marker(bytes: &[u8]) -> Result<MergeMarker, Damaged> {
    let mut reader = Reader::new(bytes, "merge marker")?;
    let spec = read_spec(&mut reader)?;
    let target = CartId::from_bytes(reader.array()?);
    let guest_cart = read_cart(&mut reader)?;
    reader.end()?;
    Ok(MergeMarker { spec, guest_cart, target })
}

pub(super) fn write_spec(writer: &mut Writer, spec: &MergeSpec) {
    write_owner(writer, &spec.user);
    write_owner(writer, &spec.guest);
    writer.byte(match spec.mode {
        MergeMode::Sum => 0,
        MergeMode::Max => 1,
        MergeMode::Guest => 2,
        MergeMode::User => 3,
    });
    writer.bytes(spec.new_cart_id.as_bytes());
    writer.optional(spec.expected_version.as_ref(), |writer, version| writer.unsigned(*version));
    writer.signed(spec.lifetime.user_ms);
    writer.signed(spec.lifetime.guest_ms);
    writer.time(spec.now);
}

pub(super) fn read_spec(reader: &mut Reader<'_>) -> Result<MergeSpec, Damaged> {
    Ok(MergeSpec {
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

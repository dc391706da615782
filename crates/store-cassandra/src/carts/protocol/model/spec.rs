//! What a shop with one cart does, one request after the other.

use std::collections::BTreeMap;

use stateright::semantics::SequentialSpec;

type Lines = BTreeMap<char, u32>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// Quantity 0 removes the line.
    Set(char, u32),
    /// Adds to the quantity, the first time.
    Merge(char, u32),
    Read,
    Close,
    SetIfMatch {
        version: u64,
        line: char,
        quantity: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Ret {
    Done,
    Refused,
    /// The lines and the version.
    Cart(Option<(Lines, u64)>),
    Closed(Lines),
}

/// The cart of an owner. Versions are the engine's choice: those that it shows must grow with every change and be the same between
/// two changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Shop {
    cart: Option<Lines>,
    /// The version of this state, once it was shown.
    version: Option<u64>,
    /// The newest version that was shown.
    last: u64,
    is_added: bool,
}

impl Shop {
    pub(super) fn open(lines: Lines) -> Self {
        Self { cart: Some(lines), ..Self::default() }
    }

    fn shows(&mut self, version: u64) -> bool {
        match self.version {
            Some(known) => known == version,
            None if version > self.last => {
                (self.version, self.last) = (Some(version), version);
                true
            }
            None => false,
        }
    }

    fn set(&mut self, line: char, quantity: u32) {
        if quantity > 0 {
            self.cart.get_or_insert_default().insert(line, quantity);
        } else if self.cart.as_mut().and_then(|cart| cart.remove(&line)).is_none() {
            // Nothing was there, nothing changes.
            return;
        }
        self.version = None;
    }
}

impl SequentialSpec for Shop {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match op {
            Op::Set(line, quantity) => self.set(*line, *quantity),
            Op::Merge(_, _) if self.is_added => {}
            Op::Merge(line, quantity) => {
                self.is_added = true;
                let before = self.cart.as_ref().and_then(|cart| cart.get(line)).copied().unwrap_or(0);
                self.set(*line, before + quantity);
            }
            Op::Read => return Ret::Refused,
            Op::Close => {
                self.version = None;
                return self.cart.take().map_or(Ret::Refused, Ret::Closed);
            }
            Op::SetIfMatch { version, line, quantity } => {
                if self.cart.is_none() || !self.shows(*version) {
                    return Ret::Refused;
                }
                self.set(*line, *quantity);
            }
        }
        Ret::Done
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        match (op, ret) {
            (Op::Read, Ret::Cart(None)) => self.cart.is_none(),
            (Op::Read, Ret::Cart(Some((lines, version)))) => {
                self.cart.as_ref() == Some(lines) && self.shows(*version)
            }
            // A checkout is refused as well where the cart changed after it was read.
            (Op::Close, Ret::Refused) => true,
            (Op::SetIfMatch { version, .. }, Ret::Refused) => {
                self.cart.is_none() || self.version != Some(*version)
            }
            _ => self.invoke(op) == *ret,
        }
    }
}

//! Every call of the contract, handed to the store inside unless a fault befalls it.

use super::{Access, Call, FaultyStore, Noun};

macro_rules! forward {
    ($self:ident, $noun:ident $access:ident, $method:ident($($argument:expr),*)) => {{
        let call = Call { noun: Noun::$noun, access: Access::$access, name: stringify!($method) };
        $self.around(call, $self.inner.$method($($argument),*)).await
    }};
}

mw_store::delegate_store!(FaultyStore, forward);

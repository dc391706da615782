//! Drafting an order: what a command would place now, or why it is refused. Reads only, so a crash leaves nothing.

use mw_codec::intents::order::OrderIntent;
use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, Demand, Money, OrderLine, Owner};
use mw_store::carts::check_version;
use mw_store::orders::{Basket, PlaceOrder, price_basket};
use mw_store::{Refusal, Result};

use crate::CassandraStore;

impl CassandraStore {
    /// The order as it would be placed now, with the cart that it closes.
    pub(super) async fn draft_order(&self, command: &PlaceOrder) -> Result<OrderIntent> {
        let (demands, closing) = self.basket(command).await?;
        let (lines, total) = self.price_lines(&demands).await?;
        command.check_total(total)?;
        // Where this process knows of no shortage, the holds decide: reading every level first costs more than undoing the
        // few orders that come short.
        if self.looks_short(&command.geo_zone, &demands) {
            self.refuse_shortages(&command.geo_zone, &demands, command.now).await?;
        }
        let order = command.clone().into_order(lines, total);
        Ok(OrderIntent { order, closing, identity: command.identity.clone() })
    }

    /// What is ordered: the lines of the command, or those of the user's cart.
    async fn basket(&self, command: &PlaceOrder) -> Result<(Vec<Demand>, Option<(Cart, CartLifetime)>)> {
        let (expected_version, lifetime) = match &command.basket {
            Basket::Lines(lines) => return Ok((lines.clone(), None)),
            Basket::Cart { expected_version, lifetime } => (*expected_version, *lifetime),
        };
        let active = self.read_active_cart(&Owner::User(command.user_id.clone()), command.now).await?;
        check_version(active.as_ref(), expected_version)?;
        let cart = active.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
        Ok((cart.demands(), Some((cart, lifetime))))
    }

    async fn price_lines(&self, demands: &[Demand]) -> Result<(Vec<OrderLine>, Money)> {
        let offers = self.offers.offers(&self.cql, demands.iter().map(|line| &line.product_id)).await?;
        let mut offers = offers.into_iter();
        price_basket(demands.to_vec(), |_| Ok(offers.next().flatten().map(|offer| (offer.name, offer.price))))
    }
}

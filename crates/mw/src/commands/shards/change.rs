//! The subcommands of `mw shards` that change something.

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use mw_store_mongodb::Options;
use mw_store_mongodb::shard_keys::{ShardKey, ShardKeys};
use mw_store_mongodb::shards::{Action, BalancerWindow, KeyRange, KeyValues};

use super::known_collection;
use crate::config::ConfigArgs;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Turn the balancer on or off, or set the hours in which it works
    #[command(subcommand)]
    Balancer(Balancer),

    /// Split a range at the values of the shard key, or in its middle
    #[command(after_help = "\
Values are written like the key: `category: Electronics, _id: MinKey`. Under a hashed key use --find.

Examples:
  mw shards split products --at 'category: Electronics, _id: MinKey'
  mw shards split orders --find 'customer_id: 65f000000000000000000001' --yes")]
    Split {
        collection: String,

        /// The first values of the new range
        #[arg(long, value_name = "VALUES", value_parser = values, required_unless_present = "find")]
        at: Option<KeyValues>,

        /// Values in the range that is split in its middle
        #[arg(long, value_name = "VALUES", value_parser = values, conflicts_with = "at")]
        find: Option<KeyValues>,

        #[command(flatten)]
        options: Confirmed,
    },

    /// Put a shard into a zone, or take it out, with a range of a collection
    #[command(subcommand)]
    Zone(Zone),

    /// Move a range of a collection to another shard
    #[command(after_help = "\
Examples:
  mw shards move products --from 'category: Electronics, _id: MinKey' --to shard-b
  mw shards move products --from 'category: a, _id: MinKey' --until 'category: b, _id: MinKey' --to shard-b --yes")]
    Move {
        collection: String,

        /// The first values of the range
        #[arg(long, value_name = "VALUES", value_parser = values)]
        from: KeyValues,

        /// The first values after the range; not given: its end
        #[arg(long, value_name = "VALUES", value_parser = values)]
        until: Option<KeyValues>,

        /// The shard
        #[arg(long, value_name = "SHARD")]
        to: String,

        #[command(flatten)]
        options: Confirmed,
    },

    /// Change the shard key of a collection, or shard one that is not
    #[command(after_help = "\
Configure the same key (store.mongodb.shard_keys) before processes are started again: one that finds another key does not \
start. Resharding copies the collection; writes wait for at most two seconds at its end.

Examples:
  mw shards reshard products --key 'category: 1, _id: 1'
  mw shards reshard carts --key 'owner: hashed' --yes")]
    Reshard {
        collection: String,

        /// One of the keys that the collection may have
        #[arg(long, value_name = "KEY")]
        key: String,

        #[command(flatten)]
        options: Confirmed,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Balancer {
    /// Let the balancer move ranges between shards
    On(Confirmed),
    /// Keep ranges where they are
    Off(Confirmed),
    /// Let the balancer work between two times of day only
    #[command(after_help = "\
Examples:
  mw shards balancer window 01:00-05:00 --yes
  mw shards balancer window always --yes")]
    Window {
        /// Start and end, such as 01:00-05:00, or `always`
        #[arg(value_parser = window)]
        window: Hours,

        #[command(flatten)]
        options: Confirmed,
    },
}

/// `None`: at any time.
#[derive(Debug, Clone)]
pub(super) struct Hours(Option<BalancerWindow>);

#[derive(Debug, Subcommand)]
pub(super) enum Zone {
    /// Put a shard into a zone; with a range its data lives in the zone
    #[command(after_help = "\
Examples:
  mw shards zone add hot --shard shard-b
  mw shards zone add hot --shard shard-b --collection products --from 'category: phones, _id: MinKey' \\
    --until 'category: phonf, _id: MinKey' --yes")]
    Add(ZoneArgs),
    /// Take a shard, and a range, out of a zone
    Remove(ZoneArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ZoneArgs {
    zone: String,

    #[arg(long, value_name = "SHARD")]
    shard: String,

    #[arg(long, value_name = "COLLECTION", requires_all = ["from", "until"])]
    collection: Option<String>,

    /// The first values of the range
    #[arg(long, value_name = "VALUES", value_parser = values, requires = "collection")]
    from: Option<KeyValues>,

    /// The first values after the range
    #[arg(long, value_name = "VALUES", value_parser = values, requires = "collection")]
    until: Option<KeyValues>,

    #[command(flatten)]
    options: Confirmed,
}

#[derive(Debug, clap::Args)]
pub(super) struct Confirmed {
    /// Do it
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

impl Command {
    fn options(&self) -> &Confirmed {
        match self {
            Self::Balancer(
                Balancer::On(options) | Balancer::Off(options) | Balancer::Window { options, .. },
            )
            | Self::Split { options, .. }
            | Self::Move { options, .. }
            | Self::Reshard { options, .. } => options,
            Self::Zone(Zone::Add(zone) | Zone::Remove(zone)) => &zone.options,
        }
    }

    pub(super) fn config(&self) -> &ConfigArgs {
        &self.options().config
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.options().yes
    }

    pub(super) fn action(&self, options: &Options) -> Result<Action> {
        Ok(match self {
            Self::Balancer(Balancer::On(_)) => Action::BalancerOn,
            Self::Balancer(Balancer::Off(_)) => Action::BalancerOff,
            Self::Balancer(Balancer::Window { window, .. }) => Action::Window(window.0.clone()),
            Self::Split { collection, at, find, .. } => {
                known_collection(collection, options)?;
                let (at, in_the_middle) = match (at, find) {
                    (Some(at), _) => (at.clone(), false),
                    (None, Some(find)) => (find.clone(), true),
                    (None, None) => bail!("name the values with --at or --find"),
                };
                Action::Split { collection: collection.clone(), at, in_the_middle }
            }
            Self::Zone(Zone::Add(zone)) => {
                let range = zone.range(options)?;
                Action::ZoneAdd { zone: zone.zone.clone(), shard: zone.shard.clone(), range }
            }
            Self::Zone(Zone::Remove(zone)) => {
                let range = zone.range(options)?;
                Action::ZoneRemove { zone: zone.zone.clone(), shard: zone.shard.clone(), range }
            }
            Self::Move { collection, from, until, to, .. } => {
                known_collection(collection, options)?;
                let (min, max) = (from.clone(), until.clone());
                Action::Move { collection: collection.clone(), min, max, to: to.clone() }
            }
            Self::Reshard { collection, key, .. } => {
                known_collection(collection, options)?;
                let key = shard_key(collection, key, options)?;
                Action::Reshard { collection: collection.clone(), key }
            }
        })
    }
}

impl ZoneArgs {
    fn range(&self, options: &Options) -> Result<Option<KeyRange>> {
        let (Some(collection), Some(min), Some(max)) = (&self.collection, &self.from, &self.until) else {
            return Ok(None);
        };
        known_collection(collection, options)?;
        Ok(Some(KeyRange { collection: collection.clone(), min: min.clone(), max: max.clone() }))
    }
}

/// Of the papers' collections the keys that the engine's statements know, of the engine's own theirs alone.
fn shard_key(collection: &str, text: &str, options: &Options) -> Result<ShardKey> {
    let key = ShardKey::parse(text).with_context(|| {
        format!("\"{text}\" is no shard key: it is like \"customer_id: hashed\" or \"category: 1, _id: 1\"")
    })?;
    let accepted = ShardKeys::accepted(collection, options.shape);
    let schema = mw_store_mongodb::schema::Schema::new(options);
    let own =
        schema.collections().iter().find(|it| it.name == collection).and_then(|it| it.shard_key.clone());
    if accepted.contains(&key.to_string().as_str()) || own.as_ref() == Some(&key) {
        return Ok(key);
    }
    let mut names: Vec<String> = accepted.iter().map(|key| format!("\"{key}\"")).collect();
    if names.is_empty() {
        names.extend(own.map(|key| format!("\"{key}\"")));
    }
    bail!("{collection} cannot be sharded by \"{key}\": its keys are {}", names.join(", "))
}

fn values(text: &str) -> Result<KeyValues, String> {
    KeyValues::parse(text)
        .ok_or_else(|| "write values like the key: `category: Electronics, _id: MinKey`".to_owned())
}

fn window(text: &str) -> Result<Hours, String> {
    if text == "always" {
        return Ok(Hours(None));
    }
    let window = BalancerWindow::parse(text);
    window
        .map(|window| Hours(Some(window)))
        .ok_or_else(|| "name two times, such as 01:00-05:00, or `always`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_the_engine_knows_are_resharded_to() {
        let options = Options::new("mongodb://127.0.0.1");
        let of = |collection, key| shard_key(collection, key, &options).map_err(|error| error.to_string());
        assert_eq!(of("products", "category: 1, _id: 1").unwrap().to_string(), "category: 1, _id: 1");
        assert_eq!(of("user_sessions", "_id: hashed").unwrap().to_string(), "_id: hashed");
        assert_eq!(
            of("orders", "geozone: 1").unwrap_err(),
            "orders cannot be sharded by \"geozone: 1\": its keys are \"customer_id: hashed\", \"customer_id: 1\""
        );
        assert!(of("orders", "geozone").unwrap_err().contains("is no shard key"));
        assert!(
            known_collection("order", &options)
                .unwrap_err()
                .to_string()
                .contains("there are orders, products, ")
        );
    }
}

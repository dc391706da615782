//! Commands that change the shards. Each says what it would do; done, it is written to the audit log, before it begins and
//! when it has ended.

use std::fmt;

use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::WriteConcern;
use uuid::Uuid;

use super::AUDIT_LOG;
use super::key_values::KeyValues;
use crate::Options;
use crate::connect::is_sharded;
use crate::schema::servers::{key_text, shard_keys};
use crate::schema::{Schema, SchemaError};
use crate::shard_keys::ShardKey;

/// The database that runs most of them.
const ADMIN: &str = "admin";

/// What an operator wants.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    BalancerOn,
    BalancerOff,
    /// `None`: at any time.
    Window(Option<BalancerWindow>),
    /// Splits the range that has these values, at them or in its middle.
    Split {
        collection: String,
        at: KeyValues,
        in_the_middle: bool,
    },
    ZoneAdd {
        zone: String,
        shard: String,
        range: Option<KeyRange>,
    },
    ZoneRemove {
        zone: String,
        shard: String,
        range: Option<KeyRange>,
    },
    /// Moves the range from `min` on, up to `max` or the end of its range.
    Move {
        collection: String,
        min: KeyValues,
        max: Option<KeyValues>,
        to: String,
    },
    Reshard {
        collection: String,
        key: ShardKey,
    },
}

/// Values of a collection's shard key, the first included, the last not.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRange {
    pub collection: String,
    pub min: KeyValues,
    pub max: KeyValues,
}

/// Times of day, UTC as the config servers have it: `01:00` and `05:00`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerWindow {
    pub start: String,
    pub stop: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    #[error("store.mongodb.uri: these servers are a replica set: there are no shards to change")]
    NotSharded,
    #[error("the collection {collection} is sharded by \"{key}\" already")]
    SameKey { collection: String, key: String },
    #[error(transparent)]
    Server(#[from] SchemaError),
}

impl BalancerWindow {
    /// Reads `01:00-05:00`.
    pub fn parse(text: &str) -> Option<Self> {
        let (start, stop) = text.split_once('-')?;
        let is_time = |text: &str| {
            text.split_once(':').is_some_and(|(hour, minute)| {
                let below =
                    |text: &str, bound: u8| text.len() == 2 && text.parse::<u8>().is_ok_and(|it| it < bound);
                below(hour, 24) && below(minute, 60)
            })
        };
        let is_window = is_time(start) && is_time(stop) && start != stop;
        is_window.then(|| Self { start: start.to_owned(), stop: stop.to_owned() })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |range: &Option<KeyRange>| match range {
            Some(KeyRange { collection, min, max }) => {
                format!(" for {collection} from {} to before {}", key_text(&min.0), key_text(&max.0))
            }
            None => String::new(),
        };
        match self {
            Self::BalancerOn => f.write_str("turn the balancer on"),
            Self::BalancerOff => f.write_str("turn the balancer off: data stays where it is"),
            Self::Window(Some(BalancerWindow { start, stop })) => {
                write!(f, "let the balancer work from {start} to {stop} only")
            }
            Self::Window(None) => f.write_str("let the balancer work at any time"),
            Self::Split { collection, at, in_the_middle } => {
                let where_to = if *in_the_middle { "in the middle of the range of" } else { "at" };
                write!(f, "split {collection} {where_to} {}", key_text(&at.0))
            }
            Self::ZoneAdd { zone, shard, range: of } => {
                write!(f, "put shard {shard} into zone {zone}{}", range(of))
            }
            Self::ZoneRemove { zone, shard, range: of } => {
                write!(f, "take shard {shard} out of zone {zone}{}", range(of))
            }
            Self::Move { collection, min, max, to } => {
                let end =
                    max.as_ref().map_or_else(String::new, |max| format!(" to before {}", key_text(&max.0)));
                write!(f, "move {collection} from {}{end} to shard {to}", key_text(&min.0))
            }
            Self::Reshard { collection, key } => {
                write!(
                    f,
                    "rewrite {collection} under the shard key {key}; it needs room for a copy of the collection"
                )
            }
        }
    }
}

impl Action {
    /// The commands that it runs, for the dry run.
    pub async fn plan(&self, client: &Client, options: &Options) -> Result<Vec<String>, ActionError> {
        let steps = self.steps(client, options).await?;
        Ok(steps.iter().map(|(database, command)| format!("{database}: {command}")).collect())
    }

    /// Runs it. `user` is written to the audit log.
    pub async fn run(&self, client: &Client, options: &Options, user: &str) -> Result<(), ActionError> {
        let steps = self.steps(client, options).await?;
        let log = client.database(&options.database).collection::<Document>(AUDIT_LOG);
        let id = Uuid::new_v4().to_string();
        let commands: Vec<String> = steps.iter().map(|(_, command)| command.to_string()).collect();
        let entry = doc! {
            "_id": &id, "at": DateTime::now(), "user": user, "action": self.to_string(), "commands": commands,
            "outcome": "begun",
        };
        let logged = log.insert_one(entry).write_concern(WriteConcern::majority()).await;
        logged.map_err(SchemaError::doing("write to the audit log"))?;
        let mut outcome = Ok(());
        for (database, command) in steps {
            // A crash here leaves the entry "begun" and some of the commands done; each may be repeated.
            outcome = client.database(&database).run_command(command).await.map(drop);
            if outcome.is_err() {
                break;
            }
        }
        let text = outcome.as_ref().map_or_else(|error| format!("failed: {error}"), |()| "done".to_owned());
        let ended = doc! { "$set": { "outcome": text, "ended_at": DateTime::now() } };
        let logged = log.update_one(doc! { "_id": id }, ended).write_concern(WriteConcern::majority()).await;
        outcome.map_err(SchemaError::doing(self.to_string()))?;
        logged.map_err(SchemaError::doing("write to the audit log"))?;
        Ok(())
    }

    /// The commands with the database that runs each.
    async fn steps(
        &self,
        client: &Client,
        options: &Options,
    ) -> Result<Vec<(String, Document)>, ActionError> {
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
        if !is_sharded(&hello.map_err(SchemaError::doing("ask for hello"))?) {
            return Err(ActionError::NotSharded);
        }
        let namespace = |collection: &str| Schema::new(options).namespace(collection);
        if let Self::Reshard { collection, key } = self {
            let found = shard_keys(client, &options.database).await?.remove(collection);
            return reshard(&options.database, collection, key, found.as_ref());
        }
        Ok(self.simple_steps(namespace))
    }

    fn simple_steps(&self, namespace: impl Fn(&str) -> String) -> Vec<(String, Document)> {
        let admin = |command: Document| vec![(ADMIN.to_owned(), command)];
        match self {
            Self::BalancerOn => admin(doc! { "balancerStart": 1 }),
            Self::BalancerOff => admin(doc! { "balancerStop": 1 }),
            Self::Window(window) => vec![("config".to_owned(), set_window(window.as_ref()))],
            Self::Split { collection, at, in_the_middle } => {
                let how = if *in_the_middle { "find" } else { "middle" };
                admin(doc! { "split": namespace(collection), how: at.0.clone() })
            }
            Self::ZoneAdd { zone, shard, range } => {
                let mut steps = admin(doc! { "addShardToZone": shard, "zone": zone });
                steps.extend(
                    range.iter().map(|range| (ADMIN.to_owned(), zone_range(range, Some(zone), &namespace))),
                );
                steps
            }
            Self::ZoneRemove { zone, shard, range } => {
                // The range first: a zone that has ranges keeps its last shard.
                let mut steps: Vec<_> = range
                    .iter()
                    .map(|range| (ADMIN.to_owned(), zone_range(range, None, &namespace)))
                    .collect();
                steps.extend(admin(doc! { "removeShardFromZone": shard, "zone": zone }));
                steps
            }
            Self::Move { collection, min, max, to } => {
                let mut command = doc! { "moveRange": namespace(collection), "min": min.0.clone() };
                if let Some(max) = max {
                    command.insert("max", max.0.clone());
                }
                command.insert("toShard", to);
                admin(command)
            }
            Self::Reshard { .. } => Vec::new(),
        }
    }
}

fn set_window(window: Option<&BalancerWindow>) -> Document {
    let change = if let Some(BalancerWindow { start, stop }) = window {
        doc! { "$set": { "activeWindow": { "start": start, "stop": stop } } }
    } else {
        doc! { "$unset": { "activeWindow": "" } }
    };
    doc! {
        "update": "settings",
        "updates": [{ "q": { "_id": "balancer" }, "u": change, "upsert": true }],
        "writeConcern": { "w": "majority" },
    }
}

fn zone_range(range: &KeyRange, zone: Option<&String>, namespace: impl Fn(&str) -> String) -> Document {
    doc! {
        "updateZoneKeyRange": namespace(&range.collection),
        "min": range.min.0.clone(),
        "max": range.max.0.clone(),
        "zone": zone,
    }
}

/// A collection that is not sharded is sharded, after the index that this needs; another key is a rewrite.
fn reshard(
    database: &str,
    collection: &str,
    key: &ShardKey,
    found: Option<&Document>,
) -> Result<Vec<(String, Document)>, ActionError> {
    let (namespace, keys) = (format!("{database}.{collection}"), key.to_document());
    let admin = |name: &str| (ADMIN.to_owned(), doc! { name: &namespace, "key": keys.clone() });
    match found {
        Some(found) if key_text(found) == key.to_string() => {
            Err(ActionError::SameKey { collection: collection.to_owned(), key: key.to_string() })
        }
        Some(_) => Ok(vec![admin("reshardCollection")]),
        None => {
            let index = doc! { "key": keys.clone(), "name": "shard_key" };
            let create = doc! { "createIndexes": collection, "indexes": [index] };
            Ok(vec![(database.to_owned(), create), admin("shardCollection")])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_two_times_of_day() {
        let window = BalancerWindow::parse("01:00-05:30").unwrap();
        assert_eq!((window.start.as_str(), window.stop.as_str()), ("01:00", "05:30"));
        for bad in ["", "01:00", "1:00-5:00", "01:00-24:00", "01:60-02:00", "01:00-01:00", "a-b"] {
            assert_eq!(BalancerWindow::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_action_says_what_it_does_and_with_which_commands() {
        let values = |text| KeyValues::parse(text).unwrap();
        let split = Action::Split {
            collection: "products".to_owned(),
            at: values("category: Electronics, _id: MinKey"),
            in_the_middle: false,
        };
        assert!(split.to_string().starts_with("split products at category: Electronics, _id: "), "{split}");
        let namespace = |collection: &str| format!("shop.{collection}");
        let steps = split.simple_steps(namespace);
        assert_eq!(steps[0].1.get_str("split").unwrap(), "shop.products");
        assert!(steps[0].1.contains_key("middle"));
        let range = KeyRange {
            collection: "products".to_owned(),
            min: values("category: a"),
            max: values("category: b"),
        };
        let add =
            Action::ZoneAdd { zone: "hot".to_owned(), shard: "b".to_owned(), range: Some(range.clone()) };
        let names = |action: &Action| -> Vec<String> {
            let steps = action.simple_steps(namespace);
            steps.iter().filter_map(|(_, command)| command.keys().next().cloned()).collect()
        };
        assert_eq!(names(&add), ["addShardToZone", "updateZoneKeyRange"]);
        let remove = Action::ZoneRemove { zone: "hot".to_owned(), shard: "b".to_owned(), range: Some(range) };
        assert_eq!(names(&remove), ["updateZoneKeyRange", "removeShardFromZone"]);
    }

    #[test]
    fn another_key_reshards_and_the_same_key_is_refused() {
        let key = ShardKey::parse("category: 1, _id: 1").unwrap();
        let name = |found: Option<Document>| {
            reshard("shop", "products", &key, found.as_ref())
                .map(|steps| steps.last().and_then(|(_, it)| it.keys().next().cloned()).unwrap_or_default())
                .map_err(|error| error.to_string())
        };
        assert_eq!(name(None).unwrap(), "shardCollection");
        assert_eq!(name(Some(doc! { "_id": "hashed" })).unwrap(), "reshardCollection");
        assert!(name(Some(doc! { "category": 1, "_id": 1 })).unwrap_err().contains("already"));
    }
}

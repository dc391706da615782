//! The first start: members are started together, sets are initiated, the administrator is created, shards are added. On kept
//! data each of these steps finds that it is done.

use crate::cluster::Cluster;
use crate::member::{COMMAND_TIMEOUT, Member};
use crate::options::{Layout, Role};
use crate::{CONFIG_SET, MONGOS, REPLICA_SET, SHARD_A, SHARD_B, SUPERUSER, SUPERUSER_PASSWORD};
use bson::{Bson, Document, doc};
use mw_testbed::Result;
use std::time::Duration;

/// Election timeouts below this one are answered with quicker heartbeats.
const SLOW_HEARTBEAT: Duration = Duration::from_secs(2);
const HEARTBEATS_PER_ELECTION: u32 = 4;

impl Cluster {
    pub(crate) fn start_members(&self) -> Result<()> {
        let of_role =
            |mongos: bool| self.members().filter(move |it| (it.state.plan.role == Role::Mongos) == mongos);
        for member in of_role(false) {
            self.spawn(member.state)?;
        }
        let deadline = self.deadline();
        for member in of_role(false) {
            member.state.wait(deadline, "start", || member.hello().is_some())?;
        }
        let sets: &[&str] = match self.options.layout {
            Layout::Standalone => return self.create_user(&self.member(0)),
            Layout::ReplicaSet { .. } => &[REPLICA_SET],
            Layout::Sharded => &[CONFIG_SET, SHARD_A, SHARD_B],
        };
        for set in sets {
            self.initiate(set)?;
        }
        for set in sets {
            let primary = self.primary(set)?;
            self.create_user(&primary)?;
            for member in self.set(set) {
                member.state.wait(self.deadline(), "serve", || member.serves())?;
            }
        }
        for mongos in of_role(true) {
            self.spawn(mongos.state)?;
            mongos.state.wait(self.deadline(), "start", || mongos.hello().is_some())?;
            for shard in [SHARD_A, SHARD_B] {
                self.named(MONGOS)
                    .command("admin", doc! { "addShard": self.seed_list(shard), "name": shard })?;
            }
        }
        Ok(())
    }

    fn initiate(&self, set: &str) -> Result<()> {
        let Some(first) = self.set(set).next() else { return Ok(()) };
        let is_in_set = |member: &Member<'_>| member.hello().is_some_and(|it| it.contains_key("setName"));
        if is_in_set(&first) {
            return Ok(());
        }
        let mut connection = self.access().anonymous(first.state.port.port, COMMAND_TIMEOUT)?;
        connection.run("admin", doc! { "replSetInitiate": self.set_config(set) }).map(drop)
    }

    fn set_config(&self, set: &str) -> Document {
        let members: Vec<Bson> = (0_i32..)
            .zip(self.set(set))
            .map(|(id, member)| doc! { "_id": id, "host": member.address() }.into())
            .collect();
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let election = self.options.election_timeout;
        let heartbeat = (election / HEARTBEATS_PER_ELECTION).min(SLOW_HEARTBEAT);
        let settings = doc! {
            "electionTimeoutMillis": millis(election), "heartbeatIntervalMillis": millis(heartbeat),
        };
        let mut config = doc! { "_id": set, "members": members, "settings": settings };
        if set == CONFIG_SET {
            config.insert("configsvr", true);
        }
        config
    }

    /// Until there is a user, a connection from the same machine may create one.
    fn create_user(&self, primary: &Member<'_>) -> Result<()> {
        if !self.options.auth || self.access().client(primary.state.port.port, COMMAND_TIMEOUT).is_ok() {
            return Ok(());
        }
        let create = doc! { "createUser": SUPERUSER, "pwd": SUPERUSER_PASSWORD, "roles": ["root"] };
        let mut connection = self.access().anonymous(primary.state.port.port, COMMAND_TIMEOUT)?;
        connection.run("admin", create).map(drop)
    }
}

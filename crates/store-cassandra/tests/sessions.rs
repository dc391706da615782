//! Sessions on a real cluster: which changes are plain writes, and what concurrent changes in several processes leave.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use mw_domain::sessions::SessionLifetime;
use mw_domain::{Session, SessionId, Timestamp};
use mw_store::sessions::{CreateSession, TouchSession};
use mw_store::{Refusal, Sessions, StoreError};
use mw_store_cassandra::{CassandraStore, StatementFault, StatementKind, Table};
use mw_testkit::cassandra::{Lease, StatementScript};
use tokio::task::JoinSet;
use uuid::Uuid;

const LIFETIME: SessionLifetime = SessionLifetime { ttl_ms: 86_400_000 };
/// The middle of a lifetime by the calendar.
const NOW: Timestamp = Timestamp::from_millis(1_773_144_000_000);

fn session(name: &str, now: Timestamp) -> Session {
    Session {
        session_id: SessionId::parse(name).unwrap(),
        user_id: None,
        geo_zone: None,
        ip: None,
        user_agent: None,
        device_type: None,
        data: BTreeMap::from([("first".to_owned(), "0".to_owned())]),
        created_at: now,
        last_activity: now,
        expires_at: now.plus_millis(LIFETIME.ttl_ms),
    }
}

async fn create(store: &CassandraStore, name: &str, now: Timestamp) -> Session {
    let command = CreateSession { session: session(name, now), id_seed: None, now, identity: None };
    store.create_session(command).await.unwrap().value
}

async fn touch(
    store: &CassandraStore,
    name: &SessionId,
    data: &[(&str, Option<&str>)],
    now: Timestamp,
) -> Result<Session, StoreError> {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.map(ToOwned::to_owned))).collect();
    let command = TouchSession { session_id: name.clone(), data, lifetime: LIFETIME, now };
    store.touch_session(command).await
}

async fn data(store: &CassandraStore, name: &SessionId, now: Timestamp) -> Vec<(String, String)> {
    store.session(name, now).await.unwrap().unwrap().data.into_iter().collect()
}

/// A process that cannot send a conditional statement on sessions.
async fn without_lwts(lease: &Lease) -> Arc<CassandraStore> {
    let script = StatementScript::default();
    script.fail(Table::SessionsById, StatementKind::Cas, (0, usize::MAX), StatementFault::NotSent);
    lease.open_with(&script).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn activity_data_and_sessions_of_the_service_need_no_lwt() {
    let lease = Lease::empty().await;
    let store = without_lwts(&lease).await;
    let command = CreateSession {
        session: session("replaced", NOW),
        id_seed: Some(Uuid::new_v4()),
        now: NOW,
        identity: None,
    };
    let made = store.create_session(command).await.unwrap().value;
    touch(&store, &made.session_id, &[("a", Some("1")), ("first", None)], NOW.plus_seconds(1)).await.unwrap();
    let later = NOW.plus_seconds(3_600);
    let active = touch(&store, &made.session_id, &[], later).await.unwrap();
    assert_eq!((active.last_activity, active.expires_at), (later, later.plus_millis(LIFETIME.ttl_ms)));
    let other = lease.open().await;
    assert_eq!(other.session(&made.session_id, later).await.unwrap(), Some(active));
    assert_eq!(data(&other, &made.session_id, later).await, [("a".to_owned(), "1".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_processes_do_not_lose_keys_of_the_data() {
    let lease = Lease::empty().await;
    let stores = [lease.open().await, lease.open().await, lease.open().await];
    let name = create(&stores[0], "busy", NOW).await.session_id;
    let mut tasks = JoinSet::new();
    for (number, store) in (0..30).zip(stores.iter().cycle().cloned()) {
        let name = name.clone();
        tasks.spawn(async move {
            let key = format!("k{number:02}");
            touch(&store, &name, &[(&key, Some("1"))], NOW.plus_seconds(number)).await.unwrap();
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(data(&stores[1], &name, NOW.plus_seconds(60)).await.len(), 31);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_outlives_the_lifetime_in_which_it_was_written() {
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let name = create(&store, "long", NOW).await.session_id;
    touch(&store, &name, &[("kept", Some("1")), ("gone", Some("1"))], NOW.plus_seconds(10)).await.unwrap();
    let mut now = NOW;
    for round in 0..6 {
        now = now.plus_seconds(50_000);
        touch(&store, &name, &[("gone", None), ("round", Some(&round.to_string()))], now).await.unwrap();
    }
    let expected = [("first", "0"), ("kept", "1"), ("round", "5")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(data(&store, &name, now).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_change_of_an_ended_session_does_not_reach_the_next_one() {
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let (slow, store) = (lease.open_with(&script).await, lease.open().await);
    let name = create(&store, "again", NOW).await.session_id;
    let paused = script.pause(Table::SessionsById, StatementKind::Write, 0);
    let late = {
        let (slow, name) = (Arc::clone(&slow), name.clone());
        tokio::spawn(async move { touch(&slow, &name, &[("late", Some("1"))], NOW.plus_seconds(1)).await })
    };
    paused.reached().await;
    store.delete_session(&name, NOW.plus_seconds(2)).await.unwrap();
    create(&store, "again", NOW.plus_seconds(3)).await;
    paused.resume();
    late.await.unwrap().unwrap();
    let now = NOW.plus_seconds(4);
    assert_eq!(data(&store, &name, now).await, [("first".to_owned(), "0".to_owned())]);
    touch(&store, &name, &[("new", Some("1"))], now).await.unwrap();
    assert_eq!(data(&slow, &name, now).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn activity_just_before_the_expiry_and_the_next_session_exclude_each_other() {
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let (slow, store) = (lease.open_with(&script).await, lease.open().await);
    let name = create(&store, "edge", NOW).await.session_id;
    let end = NOW.plus_millis(LIFETIME.ttl_ms);
    let paused = script.pause(Table::SessionsById, StatementKind::Cas, 0);
    let late = {
        let (slow, name) = (Arc::clone(&slow), name.clone());
        tokio::spawn(async move { touch(&slow, &name, &[("late", Some("1"))], end.plus_seconds(-1)).await })
    };
    paused.reached().await;
    create(&store, "edge", end).await;
    paused.resume();
    // It reads again and finds the next session, which is live by its clock.
    let touched = late.await.unwrap().unwrap();
    assert_eq!(touched.created_at, end);
    assert_eq!(data(&store, &name, end).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_churns_through_keys_is_refused_at_the_limit() {
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let name = create(&store, "churn", NOW).await.session_id;
    let mut refused = None;
    for round in 0..40 {
        let keys: Vec<String> = (0..60).map(|key| format!("r{round}-{key}")).collect();
        let set: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (key.as_str(), Some("1"))).collect();
        let gone: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (key.as_str(), None)).collect();
        if let Err(error) = touch(&store, &name, &set, NOW.plus_seconds(round)).await {
            refused = Some(error);
            break;
        }
        touch(&store, &name, &gone, NOW.plus_seconds(round)).await.unwrap();
    }
    let refused = refused.unwrap();
    let is_named =
        |refusal: &Refusal| matches!(refusal, Refusal::InvalidField { field, .. } if field == "data");
    assert!(refused.refusal().is_some_and(is_named), "{refused:?}");
    assert_eq!(data(&store, &name, NOW).await.len(), 1);
}

//! Cases of sessions.

use std::collections::BTreeMap;

use mw_domain::limits::ENTRIES_MAX;
use mw_domain::{CartId, MergeMode, Session, Timestamp};

use super::fixtures::{
    DAY, Fixture, HOUR, LIFETIME, MINUTE, SESSION_LIFETIME, at, bad_positions, guest, just_before,
    quantities, refusal, session_id, user, user_id, walk_every_way, zone,
};
use crate::sessions::{CreateSession, LoggedIn, Login, TouchSession};
use crate::{PageRequest, Refusal};

fn new_session(name: &str, of_user: Option<&str>, now: Timestamp) -> Session {
    Session {
        session_id: session_id(name),
        user_id: of_user.map(user_id),
        geo_zone: Some(zone("north")),
        ip: Some("192.0.2.7".to_owned()),
        user_agent: Some("browser".to_owned()),
        device_type: None,
        data: BTreeMap::from([("theme".to_owned(), "dark".to_owned())]),
        created_at: now,
        last_activity: now,
        expires_at: now.plus_millis(SESSION_LIFETIME.ttl_ms),
    }
}

fn creation(session: Session) -> CreateSession {
    CreateSession { now: session.created_at, session, id_seed: None, identity: None }
}

pub(super) async fn create(fixture: &Fixture, name: &str, of_user: Option<&str>, now: Timestamp) -> Session {
    let command = creation(new_session(name, of_user, now));
    fixture.store.create_session(command).await.unwrap().value
}

fn touch(name: &str, data: &[(&str, Option<&str>)], now: Timestamp) -> TouchSession {
    TouchSession {
        session_id: session_id(name),
        data: data.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect(),
        lifetime: SESSION_LIFETIME,
        now,
    }
}

pub(super) fn login(fixture: &Fixture, name: &str, user: &str, now: Timestamp) -> Login {
    Login {
        session_id: session_id(name),
        user_id: user_id(user),
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(fixture.uuid()),
        session_lifetime: SESSION_LIFETIME,
        cart_lifetime: LIFETIME,
        now,
        identity: None,
    }
}

async fn read(fixture: &Fixture, name: &str, now: Timestamp) -> Option<Session> {
    fixture.store.session(&session_id(name), now).await.unwrap()
}

async fn of_user(fixture: &Fixture, name: &str, now: Timestamp) -> Vec<String> {
    let user = user_id(name);
    let sessions =
        walk_every_way(async |request| fixture.store.user_sessions(&user, now, request).await).await;
    sessions.into_iter().map(|session| session.session_id.to_string()).collect()
}

pub(super) async fn a_session_reads_back(fixture: Fixture) {
    assert_eq!(read(&fixture, "s", at(0)).await, None);
    let session = new_session("s", Some("u"), at(0));
    let done = fixture.store.create_session(creation(session.clone())).await.unwrap();
    assert_eq!((&done.value, done.replayed), (&session, false));
    assert_eq!(read(&fixture, "s", at(1)).await, Some(session));
}

pub(super) async fn a_live_id_is_refused(fixture: Fixture) {
    let first = create(&fixture, "s", None, at(0)).await;
    let again = creation(new_session("s", Some("u"), just_before(at(DAY))));
    assert_eq!(refusal(fixture.store.create_session(again).await), Refusal::SessionBound);
    assert_eq!(read(&fixture, "s", at(1)).await, Some(first));
    let next = create(&fixture, "s", Some("u"), at(DAY)).await;
    assert_eq!(read(&fixture, "s", at(DAY)).await, Some(next), "an expired id is free");
}

pub(super) async fn a_session_expires_to_the_second(fixture: Fixture) {
    create(&fixture, "s", Some("u"), at(0)).await;
    let last = just_before(at(DAY));
    assert!(read(&fixture, "s", last).await.is_some());
    assert_eq!(of_user(&fixture, "u", last).await, ["s"]);

    assert_eq!(read(&fixture, "s", at(DAY)).await, None);
    assert_eq!(of_user(&fixture, "u", at(DAY)).await, [""; 0]);
    let touched = fixture.store.touch_session(touch("s", &[], at(DAY))).await;
    assert_eq!(refusal(touched), Refusal::SessionNotFound);
    let logged_in = fixture.store.login(login(&fixture, "s", "u", at(DAY))).await;
    assert_eq!(refusal(logged_in), Refusal::SessionNotFound);
    let deleted = fixture.store.delete_session(&session_id("s"), at(DAY)).await;
    assert_eq!(refusal(deleted), Refusal::SessionNotFound);
}

pub(super) async fn bare_activity_is_written_once_a_minute(fixture: Fixture) {
    let session = create(&fixture, "s", None, at(0)).await;
    let soon = touch("s", &[], just_before(at(MINUTE)));
    assert_eq!(fixture.store.touch_session(soon).await, Ok(session.clone()));
    assert_eq!(read(&fixture, "s", at(MINUTE)).await, Some(session));

    let touched = fixture.store.touch_session(touch("s", &[], at(MINUTE))).await.unwrap();
    assert_eq!((touched.last_activity, touched.expires_at), (at(MINUTE), at(MINUTE + DAY)));
    assert_eq!(touched.created_at, at(0));
    assert_eq!(read(&fixture, "s", at(DAY)).await, Some(touched));
}

pub(super) async fn data_is_merged_at_once_and_none_removes(fixture: Fixture) {
    create(&fixture, "s", None, at(0)).await;
    let data = [("theme", None), ("lang", Some("ru")), ("absent", None)];
    let touched = fixture.store.touch_session(touch("s", &data, at(1))).await.unwrap();
    assert_eq!(touched.data, BTreeMap::from([("lang".to_owned(), "ru".to_owned())]));
    assert_eq!((touched.last_activity, touched.expires_at), (at(1), at(1 + DAY)));
    assert_eq!(read(&fixture, "s", at(2)).await, Some(touched));
}

pub(super) async fn too_much_data_is_refused_whole(fixture: Fixture) {
    let session = create(&fixture, "s", None, at(0)).await;
    let mut command = touch("s", &[("theme", Some("light"))], at(1));
    for number in 0..ENTRIES_MAX {
        command.data.insert(format!("k{number}"), Some("v".to_owned()));
    }
    let refused = refusal(fixture.store.touch_session(command).await);
    assert!(matches!(&refused, Refusal::InvalidField { field, .. } if field == "data"), "{refused:?}");
    assert_eq!(read(&fixture, "s", at(2)).await, Some(session));
    let unknown = fixture.store.touch_session(touch("other", &[], at(1))).await;
    assert_eq!(refusal(unknown), Refusal::SessionNotFound);
}

pub(super) async fn a_login_binds_the_user_and_merges_the_cart(fixture: Fixture) {
    create(&fixture, "s", None, at(0)).await;
    fixture.set_all(&guest("s"), &[("a", 2), ("b", 1)], at(1)).await;
    let own = fixture.set(&user("u"), "a", 3, at(1)).await;
    let done = fixture.store.login(login(&fixture, "s", "u", at(5))).await.unwrap();
    assert!(!done.replayed);
    let LoggedIn { session, cart } = done.value;
    assert_eq!(session.user_id, Some(user_id("u")));
    assert_eq!((session.last_activity, session.expires_at), (at(5), at(5 + DAY)), "activity");
    let cart = cart.unwrap();
    assert_eq!((cart.cart_id, quantities(&cart)), (own.cart_id, vec![("a", 5), ("b", 1)]));

    assert_eq!(read(&fixture, "s", at(6)).await, Some(session));
    assert_eq!(of_user(&fixture, "u", at(6)).await, ["s"]);
    assert_eq!(fixture.active(&user("u"), at(6)).await, Some(cart));
    assert_eq!(fixture.active(&guest("s"), at(6)).await, None);
    let history = fixture.store.cart_changes(&user("u"), at(6), PageRequest::first(10)).await;
    assert_eq!(history.unwrap().items.len(), 3);
}

pub(super) async fn a_login_merges_in_the_requested_mode_or_opens_the_cart(fixture: Fixture) {
    create(&fixture, "s", None, at(0)).await;
    fixture.set(&guest("s"), "a", 2, at(1)).await;
    fixture.set(&user("u"), "a", 9, at(1)).await;
    let command = Login { mode: MergeMode::Guest, ..login(&fixture, "s", "u", at(2)) };
    let cart = fixture.store.login(command).await.unwrap().value.cart.unwrap();
    assert_eq!(quantities(&cart), [("a", 2)]);

    create(&fixture, "t", None, at(0)).await;
    let without = fixture.store.login(login(&fixture, "t", "v", at(2))).await.unwrap();
    assert_eq!(without.value.cart, None);
    fixture.set(&guest("t"), "b", 1, at(3)).await;
    let command = login(&fixture, "t", "v", at(4));
    let new_cart_id = command.new_cart_id;
    let cart = fixture.store.login(command).await.unwrap().value.cart.unwrap();
    assert_eq!((cart.cart_id, quantities(&cart)), (new_cart_id, vec![("b", 1)]));
}

pub(super) async fn a_login_again_is_fine_and_of_another_user_is_not(fixture: Fixture) {
    create(&fixture, "s", None, at(0)).await;
    fixture.set(&guest("s"), "a", 1, at(0)).await;
    let first = fixture.store.login(login(&fixture, "s", "u", at(1))).await.unwrap().value;
    let again = fixture.store.login(login(&fixture, "s", "u", at(2))).await.unwrap().value;
    assert_eq!(again.cart, first.cart);
    assert_eq!(again.session.last_activity, at(2));

    fixture.set(&guest("s"), "b", 1, at(3)).await;
    let other = fixture.store.login(login(&fixture, "s", "v", at(4))).await;
    assert_eq!(refusal(other), Refusal::SessionBound);
    assert_eq!(read(&fixture, "s", at(5)).await, Some(again.session));
    assert!(fixture.active(&guest("s"), at(5)).await.is_some(), "nothing was merged");
    let unknown = fixture.store.login(login(&fixture, "unknown", "u", at(4))).await;
    assert_eq!(refusal(unknown), Refusal::SessionNotFound);
}

pub(super) async fn a_cart_outlives_its_session(fixture: Fixture) {
    create(&fixture, "s", None, at(0)).await;
    let cart = fixture.set(&guest("s"), "a", 1, at(HOUR)).await;
    fixture.store.delete_session(&session_id("s"), at(2 * HOUR)).await.unwrap();
    assert_eq!(fixture.active(&guest("s"), at(DAY)).await, Some(cart));
}

pub(super) async fn a_deleted_session_is_gone(fixture: Fixture) {
    create(&fixture, "s", Some("u"), at(0)).await;
    fixture.store.delete_session(&session_id("s"), at(1)).await.unwrap();
    assert_eq!(read(&fixture, "s", at(1)).await, None);
    assert_eq!(of_user(&fixture, "u", at(1)).await, [""; 0]);
    let again = fixture.store.delete_session(&session_id("s"), at(1)).await;
    assert_eq!(refusal(again), Refusal::SessionNotFound);
    create(&fixture, "s", None, at(2)).await;
    assert_eq!(of_user(&fixture, "u", at(2)).await, [""; 0]);
}

pub(super) async fn a_users_sessions_are_listed_newest_first(fixture: Fixture) {
    for (name, seconds) in [("b", 0), ("a", 0), ("c", 0), ("e", 5), ("d", 9)] {
        create(&fixture, name, Some("u"), at(seconds)).await;
    }
    create(&fixture, "other", Some("v"), at(3)).await;
    create(&fixture, "unknown", None, at(3)).await;
    assert_eq!(of_user(&fixture, "u", at(10)).await, ["d", "e", "a", "b", "c"]);
    let touched = touch("a", &[("k", Some("v"))], at(20));
    fixture.store.touch_session(touched).await.unwrap();
    assert_eq!(of_user(&fixture, "u", at(21)).await, ["d", "e", "a", "b", "c"], "by creation");
    assert_eq!(of_user(&fixture, "u", at(DAY + 4)).await, ["d", "e", "a"]);
}

pub(super) async fn revoking_ends_all_sessions_of_the_user_alone(fixture: Fixture) {
    for name in ["a", "b"] {
        create(&fixture, name, Some("u"), at(0)).await;
    }
    create(&fixture, "c", None, at(0)).await;
    fixture.store.login(login(&fixture, "c", "u", at(1))).await.unwrap();
    create(&fixture, "other", Some("v"), at(0)).await;
    fixture.store.revoke_sessions(&user_id("u"), at(2)).await.unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(read(&fixture, name, at(2)).await, None, "{name}");
    }
    assert_eq!(of_user(&fixture, "u", at(2)).await, [""; 0]);
    assert!(read(&fixture, "other", at(2)).await.is_some());
    fixture.store.revoke_sessions(&user_id("unknown"), at(2)).await.unwrap();
}

pub(super) async fn bad_positions_in_sessions_are_refused(fixture: Fixture) {
    create(&fixture, "s", Some("u"), at(0)).await;
    for page in bad_positions() {
        let listed = fixture.store.user_sessions(&user_id("u"), at(1), page).await;
        assert_eq!(refusal(listed), Refusal::InvalidCursor);
    }
}

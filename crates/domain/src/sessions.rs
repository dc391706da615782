//! Sessions: user, zone, device and a small amount of data. Activity slides the expiry.

use std::collections::BTreeMap;

use crate::ids::{GeoZone, SessionId, UserId};
use crate::limits::{InvalidField, TEXT_CHARS_MAX, check_entries, check_text};
use crate::time::Timestamp;

/// The clocks of two processes, or of one before and after a correction, differ by less than this.
const CLOCK_DIFFERENCE_MAX_MS: i64 = 60_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub session_id: SessionId,
    pub user_id: Option<UserId>,
    pub geo_zone: Option<GeoZone>,
    pub ip: Option<String>,
    pub user_agent: Option<String>,
    pub device_type: Option<String>,
    pub data: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub last_activity: Timestamp,
    pub expires_at: Timestamp,
}

/// The time to live after the last activity, and the interval at which bare activity is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLifetime {
    pub ttl_ms: i64,
}

impl SessionLifetime {
    /// Bare activity is written at most this often: a minute, or a tenth of the time to live if that is less.
    pub fn activity_interval_ms(self) -> i64 {
        (self.ttl_ms / 10).min(60_000)
    }
}

impl Session {
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }

    pub fn check(&self) -> Result<(), InvalidField> {
        let texts = [("ip", &self.ip), ("user_agent", &self.user_agent), ("device_type", &self.device_type)];
        for (field, text) in texts {
            if let Some(text) = text {
                check_text(field, text, TEXT_CHARS_MAX)?;
            }
        }
        self.check_data()
    }

    /// Slides the expiry and merges data; `None` removes a key. Returns whether the session must be written: bare
    /// activity within the interval is not.
    pub fn touch(
        &mut self,
        data: &BTreeMap<String, Option<String>>,
        now: Timestamp,
        lifetime: SessionLifetime,
    ) -> Result<bool, InvalidField> {
        let idle_ms = now.as_millis().saturating_sub(self.last_activity.as_millis());
        if data.is_empty() && idle_ms < lifetime.activity_interval_ms() && !self.is_of_the_future(now) {
            return Ok(false);
        }
        for (key, value) in data {
            match value {
                Some(value) => self.data.insert(key.clone(), value.clone()),
                None => self.data.remove(key),
            };
        }
        self.check_data()?;
        self.active(now, lifetime);
        Ok(true)
    }

    /// Records activity at `now`. `last_activity` does not decrease, unless a clock that was ahead has stamped it: the session
    /// would live on by as much.
    pub fn active(&mut self, now: Timestamp, lifetime: SessionLifetime) {
        self.last_activity = if self.is_of_the_future(now) { now } else { self.last_activity.max(now) };
        self.expires_at = self.last_activity.plus_millis(lifetime.ttl_ms);
    }

    /// Whether the last activity is later than clocks may differ.
    fn is_of_the_future(&self, now: Timestamp) -> bool {
        self.last_activity.as_millis().saturating_sub(now.as_millis()) > CLOCK_DIFFERENCE_MAX_MS
    }

    fn check_data(&self) -> Result<(), InvalidField> {
        check_entries("data", self.data.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: SessionLifetime = SessionLifetime { ttl_ms: 86_400_000 };

    fn session() -> Session {
        let now = Timestamp::from_millis(0);
        Session {
            session_id: SessionId::parse("s").unwrap(),
            user_id: None,
            geo_zone: None,
            ip: None,
            user_agent: None,
            device_type: None,
            data: BTreeMap::from([("kept".into(), "1".into()), ("gone".into(), "2".into())]),
            created_at: now,
            last_activity: now,
            expires_at: now.plus_millis(LIFETIME.ttl_ms),
        }
    }

    #[test]
    fn bare_activity_is_written_once_a_minute() {
        let mut session = session();
        let none = BTreeMap::new();
        assert_eq!(session.touch(&none, Timestamp::from_millis(59_999), LIFETIME), Ok(false));
        assert_eq!(session.expires_at.as_millis(), 86_400_000);
        assert_eq!(session.touch(&none, Timestamp::from_millis(60_000), LIFETIME), Ok(true));
        assert_eq!(session.expires_at.as_millis(), 86_460_000);
        assert_eq!(SessionLifetime { ttl_ms: 5_000 }.activity_interval_ms(), 500);
    }

    #[test]
    fn a_session_does_not_outlive_a_clock_that_was_ahead() {
        let mut session = session();
        let (none, year) = (BTreeMap::new(), Timestamp::from_millis(31_536_000_000));
        assert_eq!(session.touch(&none, year, LIFETIME), Ok(true));
        let now = Timestamp::from_millis(5_000);
        assert_eq!(session.touch(&none, now, LIFETIME), Ok(true), "the clock was set back");
        assert_eq!((session.last_activity, session.expires_at), (now, now.plus_millis(LIFETIME.ttl_ms)));
        let earlier = Timestamp::from_millis(4_000);
        assert_eq!(session.touch(&none, earlier, LIFETIME), Ok(false));
        session.active(earlier, LIFETIME);
        assert_eq!(session.last_activity, now, "a small difference changes nothing");
    }

    #[test]
    fn data_is_merged_at_once_and_null_removes() {
        let mut session = session();
        let data = BTreeMap::from([("gone".into(), None), ("new".into(), Some("3".into()))]);
        assert_eq!(session.touch(&data, Timestamp::from_millis(1), LIFETIME), Ok(true));
        let keys: Vec<&str> = session.data.keys().map(String::as_str).collect();
        assert_eq!(keys, ["kept", "new"]);
    }

    #[test]
    fn merged_data_stays_within_its_bounds() {
        let mut session = session();
        let data = (0..64).map(|at| (at.to_string(), Some(String::new()))).collect();
        let refused = session.touch(&data, Timestamp::from_millis(1), LIFETIME).unwrap_err();
        assert_eq!(refused.field, "data");
    }
}

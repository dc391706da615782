//! Kinds of values: how each is read from TOML, and its error message.
//!
//! The text of an error completes `orders.payment_window: …`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use mw_domain::Currency;
use mw_store::changes::{Topic, Topics};
use toml::Value;

/// The kind of a key's value with its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Text of at least one character; also paths.
    Text,
    OneOf(&'static [&'static str]),
    /// `mongodb://…`; its password is not shown.
    Uri,
    Currency,
    Address,
    /// An address, or `off`.
    AddressOrOff,
    LogFilter,
    Count {
        min: u64,
        max: u64,
    },
    Time {
        min: Duration,
        max: Duration,
    },
    /// A time of whole seconds.
    Seconds {
        min: u64,
        max: u64,
    },
    Size {
        min: u64,
        max: u64,
    },
    Texts,
    /// Topics of the change feed, perhaps none.
    Topics,
    Flag,
    /// A part of a whole: 0 to 1.
    Share,
    Tokens,
    /// Anything but a table or an array.
    Scalar,
}

impl Kind {
    /// Whether a bare word that happens to be TOML (`--set store.embedded.path=123`) is meant as text.
    pub(crate) fn is_text(self) -> bool {
        !matches!(
            self,
            Self::Count { .. }
                | Self::Texts
                | Self::Topics
                | Self::Flag
                | Self::Share
                | Self::Tokens
                | Self::Scalar
        )
    }

    /// Checks a value by itself; `Tokens` are checked where they are read, since each has keys of its own.
    pub(crate) fn check(self, value: &Value) -> Result<(), String> {
        match self {
            Self::Text => text(value).map(drop),
            Self::OneOf(choices) => one_of(value, choices).map(drop),
            Self::Uri => uri(value).map(drop),
            Self::Currency => currency(value).map(drop),
            Self::Address => address(value).map(drop),
            Self::AddressOrOff => address_or_off(value).map(drop),
            Self::LogFilter => log_filter(value).map(drop),
            Self::Count { min, max } => between(count(value)?, min, max, |it| it.to_string()),
            Self::Time { min, max } => between(time(value)?, min, max, show_time),
            Self::Seconds { min, max } => {
                let time = time(value)?;
                if time.subsec_nanos() != 0 {
                    return Err(format!("{} is not a whole number of seconds", show_time(time)));
                }
                let [min, max] = [min, max].map(Duration::from_secs);
                between(time, min, max, show_time)
            }
            Self::Size { min, max } => between(size(value)?, min, max, show_size),
            Self::Texts => texts(value).map(drop),
            Self::Topics => topics(value).map(drop),
            Self::Flag => flag(value).map(drop),
            Self::Share => share(value).map(drop),
            // The value is not repeated in the error: it may hold a secret.
            Self::Tokens => match value {
                Value::Array(_) => Ok(()),
                _ => {
                    Err("expected [[tokens]] tables, or [{role = \"storefront\", token = \"…\"}] in one line"
                        .to_owned())
                }
            },
            Self::Scalar => match value {
                Value::Array(_) | Value::Table(_) => Err(unexpected("a single value", value)),
                _ => Ok(()),
            },
        }
    }
}

fn between<T: PartialOrd + Copy>(value: T, min: T, max: T, show: fn(T) -> String) -> Result<(), String> {
    if value < min || value > max {
        Err(format!("{} is out of range: it is {} to {}", show(value), show(min), show(max)))
    } else {
        Ok(())
    }
}

fn unexpected(wanted: &str, value: &Value) -> String {
    let found = match value {
        Value::String(text) => format!("\"{text}\""),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
        other => other.to_string(),
    };
    format!("expected {wanted}, found {found}")
}

pub(crate) fn text(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(text) if text.is_empty() => Err("expected text, found nothing".to_owned()),
        Value::String(text) => Ok(text),
        other => Err(unexpected("text in quotes", other)),
    }
}

pub(crate) fn texts(value: &Value) -> Result<Vec<&str>, String> {
    match value {
        Value::Array(items) if !items.is_empty() => items.iter().map(text).collect(),
        other => Err(unexpected("an array of texts, such as [\"127.0.0.1:9042\"]", other)),
    }
}

pub(crate) fn topics(value: &Value) -> Result<Topics, String> {
    let Value::Array(items) = value else {
        return Err(unexpected("an array of topics, such as [\"orders\", \"stock\"]", value));
    };
    let topic = |item| {
        let name = text(item)?;
        Topic::named(name).ok_or_else(|| {
            let names: Vec<&str> = Topic::ALL.iter().map(|topic| topic.name()).collect();
            format!("{name:?} is no topic: they are {}", names.join(", "))
        })
    };
    items.iter().map(topic).collect()
}

pub(crate) fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| unexpected("true or false", value))
}

pub(crate) fn share(value: &Value) -> Result<f64, String> {
    let number = match value {
        Value::Float(number) => Some(*number),
        Value::Integer(0) => Some(0.0),
        Value::Integer(1) => Some(1.0),
        _ => None,
    };
    let is_share = |number: &f64| (0.0..=1.0).contains(number);
    number.filter(is_share).ok_or_else(|| unexpected("a share of 0 to 1, such as 0.5", value))
}

pub(crate) fn one_of<'a>(value: &'a Value, choices: &[&str]) -> Result<&'a str, String> {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("\"{choice}\"")).collect();
    match value {
        Value::String(text) if choices.contains(&text.as_str()) => Ok(text),
        other => Err(unexpected(&quoted.join(" or "), other)),
    }
}

/// The value is not repeated in the error: it may hold a password.
pub(crate) fn uri(value: &Value) -> Result<&str, String> {
    let uri = text(value).map_err(|_| "expected text in quotes".to_owned())?;
    if uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://") {
        return Ok(uri);
    }
    Err("expected mongodb://host:port or mongodb+srv://host".to_owned())
}

/// The URI without its password.
pub(crate) fn without_password(uri: &str) -> String {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
    match rest.split_once('@') {
        Some((login, hosts)) => {
            let user = login.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:…@{hosts}")
        }
        None => uri.to_owned(),
    }
}

pub(crate) fn currency(value: &Value) -> Result<Currency, String> {
    Currency::parse(text(value)?).map_err(|error| error.to_string())
}

pub(crate) fn address(value: &Value) -> Result<SocketAddr, String> {
    let text = text(value)?;
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse()
        .map_err(|_| unexpected("an IP address with a port, such as 127.0.0.1:8080 or [::1]:8080", value))
}

/// `None` for "off".
pub(crate) fn address_or_off(value: &Value) -> Result<Option<SocketAddr>, String> {
    if value.as_str() == Some("off") {
        return Ok(None);
    }
    address(value).map(Some).map_err(|what| format!("{what}; \"off\" for none"))
}

fn log_filter(value: &Value) -> Result<tracing_subscriber::EnvFilter, String> {
    let text = text(value)?;
    tracing_subscriber::EnvFilter::try_new(text).map_err(|error| {
        format!(
            "\"{text}\" is not a log filter such as info or \"info,mw_http=debug\": {}",
            error.to_string().trim()
        )
    })
}

pub(crate) fn count(value: &Value) -> Result<u64, String> {
    match value {
        Value::Integer(number) => {
            u64::try_from(*number).map_err(|_| unexpected("a number of 0 or more", value))
        }
        other => Err(unexpected("a whole number", other)),
    }
}

/// Milliseconds in each unit of time, the largest first.
const TIME_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Bytes in each unit of size, the largest first.
const SIZE_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

pub(crate) fn time(value: &Value) -> Result<Duration, String> {
    measured(value, &TIME_UNITS)
        .map(Duration::from_millis)
        .ok_or_else(|| unexpected("a whole number with a unit (250ms, 5s, 15m, 24h or 30d)", value))
}

pub(crate) fn size(value: &Value) -> Result<u64, String> {
    measured(value, &SIZE_UNITS)
        .ok_or_else(|| unexpected("a whole number with a unit (512B, 64KiB, 128MiB or 2GiB)", value))
}

fn measured(value: &Value, units: &[(&str, u64)]) -> Option<u64> {
    let text = value.as_str()?;
    let digits = text.find(|symbol: char| !symbol.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, each) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*each)
}

fn show_time(time: Duration) -> String {
    in_largest_unit(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), &TIME_UNITS)
}

fn show_size(bytes: u64) -> String {
    in_largest_unit(bytes, &SIZE_UNITS)
}

/// In the largest unit that gives a whole number; the last unit is 1.
fn in_largest_unit(amount: u64, units: &[(&str, u64)]) -> String {
    units
        .iter()
        .find(|(_, each)| amount != 0 && amount.is_multiple_of(*each))
        .or(units.last())
        .map_or_else(|| amount.to_string(), |(name, each)| format!("{}{name}", amount / each))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    #[test]
    fn times_are_a_whole_number_with_a_unit() {
        let good =
            [("250ms", 250), ("5s", 5_000), ("15m", 900_000), ("24h", 86_400_000), ("30d", 2_592_000_000)];
        for (text, millis) in good {
            assert_eq!(time(&string(text)), Ok(Duration::from_millis(millis)));
            assert_eq!(show_time(Duration::from_millis(millis)), if text == "24h" { "1d" } else { text });
        }
        for bad in
            ["", "5", "s", "-5s", "1.5h", "5 s", "5S", "1h30m", "99999999999999999999d", "213503982335d"]
        {
            let error = time(&string(bad)).unwrap_err();
            assert!(error.starts_with("expected a whole number with a unit"), "{bad}: {error}");
        }
        assert!(time(&Value::Integer(5)).is_err());
    }

    #[test]
    fn sizes_are_binary_units_only() {
        assert_eq!(size(&string("128MiB")), Ok(128 << 20));
        assert_eq!(size(&string("0B")), Ok(0));
        assert_eq!(show_size(0), "0B");
        assert_eq!(show_size(3 << 30), "3GiB");
        for bad in ["128MB", "128", "1.5GiB", "-1B", "99999999TiB"] {
            assert!(size(&string(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_0_to_1() {
        assert_eq!([Value::Float(0.5), Value::Integer(1)].map(|it| share(&it)), [Ok(0.5), Ok(1.0)]);
        for bad in [Value::Float(1.01), Value::Float(-0.1), Value::Float(f64::NAN), Value::Integer(2)] {
            assert!(share(&bad).is_err(), "{bad}");
        }
        assert!(share(&string("0.5")).is_err());
    }

    #[test]
    fn bounds_are_reported_in_the_unit_of_the_kind() {
        let ttl = Kind::Seconds { min: 1, max: 86_400 };
        let of = |text| ttl.check(&string(text)).unwrap_err();
        assert_eq!(of("0s"), "0ms is out of range: it is 1s to 1d");
        assert_eq!(of("25h"), "25h is out of range: it is 1s to 1d");
        assert_eq!(of("1500ms"), "1500ms is not a whole number of seconds");
        let queue = Kind::Count { min: 1, max: 9 };
        assert_eq!(queue.check(&Value::Integer(10)), Err("10 is out of range: it is 1 to 9".to_owned()));
        assert!(queue.check(&Value::Integer(-1)).is_err());
    }

    #[test]
    fn an_address_is_numeric_or_localhost() {
        assert_eq!(address(&string("localhost:80")), Ok("127.0.0.1:80".parse().unwrap()));
        assert!(address(&string("[::1]:0")).is_ok());
        assert_eq!(address_or_off(&string("off")), Ok(None));
        assert_eq!(address_or_off(&string("127.0.0.1:80")), Ok(Some("127.0.0.1:80".parse().unwrap())));
        assert!(address_or_off(&string("on")).unwrap_err().ends_with("\"off\" for none"));
        for bad in [":8080", "8080", "127.0.0.1", "example.com:80", "127.0.0.1:99999"] {
            assert!(address(&string(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_kinds_report_what_they_expect() {
        assert_eq!(
            one_of(&string("rocks"), &["embedded", "cassandra"]).unwrap_err(),
            "expected \"embedded\" or \"cassandra\", found \"rocks\""
        );
        assert!(currency(&string("rub")).unwrap_err().contains("three capital letters"));
        assert!(log_filter(&string("info,mw_http=loud")).is_err());
        assert!(log_filter(&string("info,mw_http=debug")).is_ok());
        assert!(text(&string("")).is_err());
        assert!(texts(&Value::Array(vec![])).is_err());
        assert_eq!(flag(&string("true")).unwrap_err(), "expected true or false, found \"true\"");
        assert!(Kind::Scalar.check(&Value::Array(vec![])).is_err());
    }
}

//! Requests and answers as BSON documents.

use std::time::Duration;

use mongodb::bson::{Array, Bson, Document, doc};
use mw_domain::Timestamp;

use super::{Request, Response};
use crate::CutOver;
use crate::cutover::Cutover;
use crate::key::Kind;
use crate::state::{AllCounts, Counts, Phase};
use crate::status::{RejectedDocument, Status};
use crate::verify::{Difference, Verified};

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn read_millis(document: &Document, field: &str) -> Option<Duration> {
    u64::try_from(document.get_i64(field).ok()?).ok().map(Duration::from_millis)
}

pub(super) fn write_request(request: Request) -> Document {
    match request {
        Request::Status => doc! { "request": "status" },
        Request::Rejected => doc! { "request": "rejected" },
        Request::Verify { repair } => doc! { "request": "verify", "repair": repair },
        Request::CutOver(Cutover { timeout, block, accept_rejected }) => doc! {
            "request": "cutover", "timeout": millis(timeout), "block": block, "accept_rejected": accept_rejected,
        },
        Request::Abort => doc! { "request": "abort" },
    }
}

pub(super) fn read_request(document: &Document) -> Option<Request> {
    let flag = |field: &str| document.get_bool(field).ok();
    Some(match document.get_str("request").ok()? {
        "status" => Request::Status,
        "rejected" => Request::Rejected,
        "verify" => Request::Verify { repair: flag("repair")? },
        "cutover" => Request::CutOver(Cutover {
            timeout: read_millis(document, "timeout")?,
            block: flag("block")?,
            accept_rejected: flag("accept_rejected")?,
        }),
        "abort" => Request::Abort,
        _ => return None,
    })
}

pub(super) fn write_answer(answer: &Response) -> Document {
    match answer {
        Response::Status(status) => doc! { "answer": "status", "status": write_status(status) },
        Response::Rejected(rejected) => {
            let item = |it: &RejectedDocument| {
                doc! { "collection": &it.collection, "id": &it.id, "reason": &it.reason, "advice": &it.advice,
                "blocking": it.blocking }
            };
            doc! { "answer": "rejected", "items": rejected.iter().map(item).collect::<Vec<_>>() }
        }
        Response::Verified(verified) => doc! {
            "answer": "verified", "up_to": verified.up_to.as_millis(), "repaired": verified.repaired.cast_signed(),
            "compared": numbers(&verified.compared), "differences": write_differences(&verified.differences),
        },
        Response::CutOver(CutOver::Done { pause }) => doc! { "answer": "cut over", "pause": millis(*pause) },
        Response::CutOver(CutOver::Refused(reasons)) => {
            doc! { "answer": "cutover refused", "reasons": reasons.clone() }
        }
        Response::CutOver(CutOver::WentBack { why, differences, pause }) => doc! {
            "answer": "went back", "why": why, "pause": millis(*pause), "differences": write_differences(differences),
        },
        Response::Aborting => doc! { "answer": "aborting" },
        Response::Failed(why) => doc! { "answer": "failed", "why": why },
    }
}

pub(super) fn read_answer(document: &Document) -> Option<Response> {
    let text = |field: &str| document.get_str(field).ok().map(str::to_owned);
    Some(match document.get_str("answer").ok()? {
        "status" => Response::Status(read_status(document.get_document("status").ok()?)?),
        "rejected" => Response::Rejected(list(document, "items", read_rejected)?),
        "verified" => Response::Verified(Verified {
            up_to: Timestamp::from_millis(document.get_i64("up_to").ok()?),
            compared: read_numbers(document.get_array("compared").ok()?)?,
            differences: list(document, "differences", read_difference)?,
            repaired: document.get_i64("repaired").ok()?.cast_unsigned(),
        }),
        "cut over" => Response::CutOver(CutOver::Done { pause: read_millis(document, "pause")? }),
        "cutover refused" => {
            let reasons = document.get_array("reasons").ok()?.iter().map(|it| it.as_str().map(str::to_owned));
            Response::CutOver(CutOver::Refused(reasons.collect::<Option<_>>()?))
        }
        "went back" => Response::CutOver(CutOver::WentBack {
            why: text("why")?,
            differences: list(document, "differences", read_difference)?,
            pause: read_millis(document, "pause")?,
        }),
        "aborting" => Response::Aborting,
        "failed" => Response::Failed(text("why")?),
        _ => return None,
    })
}

fn list<T>(document: &Document, field: &str, read: impl Fn(&Document) -> Option<T>) -> Option<Vec<T>> {
    document.get_array(field).ok()?.iter().map(|it| read(it.as_document()?)).collect()
}

fn numbers<const COUNT: usize>(numbers: &[u64; COUNT]) -> Array {
    numbers.iter().map(|number| Bson::from(number.cast_signed())).collect()
}

fn read_numbers<const COUNT: usize>(array: &Array) -> Option<[u64; COUNT]> {
    let read: Vec<u64> = array.iter().map(|it| it.as_i64().map(i64::cast_unsigned)).collect::<Option<_>>()?;
    read.try_into().ok()
}

fn write_differences(differences: &[Difference]) -> Vec<Document> {
    let item = |it: &Difference| doc! { "collection": it.collection, "id": &it.id, "what": &it.what };
    differences.iter().map(item).collect()
}

fn read_difference(document: &Document) -> Option<Difference> {
    Some(Difference {
        collection: Kind::of_collection(document.get_str("collection").ok()?)?.collection(),
        id: document.get_str("id").ok()?.to_owned(),
        what: document.get_str("what").ok()?.to_owned(),
    })
}

fn read_rejected(document: &Document) -> Option<RejectedDocument> {
    let text = |field: &str| document.get_str(field).ok().map(str::to_owned);
    Some(RejectedDocument {
        collection: text("collection")?,
        id: text("id")?,
        reason: text("reason")?,
        advice: text("advice")?,
        blocking: document.get_bool("blocking").ok()?,
    })
}

fn write_status(status: &Status) -> Document {
    let counts = status.counts.0.iter().map(|counts| {
        let Counts { total, copied, changes, rejected, mismatched } = *counts;
        Bson::from(numbers(&[total, copied, changes, rejected, mismatched]))
    });
    let mut document = doc! {
        "phase": status.phase.as_str(), "counts": counts.collect::<Array>(), "blocked_by": status.blocked_by.clone(),
    };
    if let Some(lag) = status.lag_seconds {
        document.insert("lag_seconds", lag);
    }
    if let Some(hours) = status.oplog_hours {
        document.insert("oplog_hours", hours);
    }
    if let Some(at) = status.verified_up_to {
        document.insert("verified_up_to", at.as_millis());
    }
    document
}

fn read_status(document: &Document) -> Option<Status> {
    let mut counts = AllCounts::default();
    for (counts, stored) in counts.0.iter_mut().zip(document.get_array("counts").ok()?) {
        let [total, copied, changes, rejected, mismatched] = read_numbers(stored.as_array()?)?;
        *counts = Counts { total, copied, changes, rejected, mismatched };
    }
    let reasons = document.get_array("blocked_by").ok()?.iter().map(|it| it.as_str().map(str::to_owned));
    Some(Status {
        phase: Phase::parse(document.get_str("phase").ok()?)?,
        counts,
        lag_seconds: document.get_f64("lag_seconds").ok(),
        verified_up_to: document.get_i64("verified_up_to").ok().map(Timestamp::from_millis),
        blocked_by: reasons.collect::<Option<_>>()?,
        oplog_hours: document.get_f64("oplog_hours").ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_read_back() {
        let cutover = Cutover { timeout: Duration::from_secs(30), block: true, accept_rejected: false };
        for request in [
            Request::Status,
            Request::Rejected,
            Request::Verify { repair: true },
            Request::CutOver(cutover),
            Request::Abort,
        ] {
            assert_eq!(read_request(&write_request(request)), Some(request));
        }
        let difference = Difference { collection: "orders", id: "7".to_owned(), what: "w".to_owned() };
        let mut counts = AllCounts::default();
        counts.of_mut(Kind::Orders).rejected = 4;
        let status = Status {
            phase: Phase::Follow,
            counts,
            lag_seconds: Some(0.5),
            verified_up_to: Some(Timestamp::from_millis(5)),
            blocked_by: vec!["x".to_owned()],
            oplog_hours: None,
        };
        let verified = Verified {
            up_to: Timestamp::from_millis(9),
            compared: [1, 2, 3],
            differences: vec![difference.clone()],
            repaired: 2,
        };
        let rejected = RejectedDocument {
            collection: "carts".to_owned(),
            id: "1".to_owned(),
            reason: "r".to_owned(),
            advice: "a".to_owned(),
            blocking: true,
        };
        let went_back = CutOver::WentBack {
            why: "w".to_owned(),
            differences: vec![difference],
            pause: Duration::from_millis(3),
        };
        for answer in [
            Response::Status(status),
            Response::Rejected(vec![rejected]),
            Response::Verified(verified),
            Response::CutOver(CutOver::Done { pause: Duration::from_millis(7) }),
            Response::CutOver(CutOver::Refused(vec!["y".to_owned()])),
            Response::CutOver(went_back),
            Response::Aborting,
            Response::Failed("z".to_owned()),
        ] {
            assert_eq!(read_answer(&write_answer(&answer)), Some(answer));
        }
    }
}

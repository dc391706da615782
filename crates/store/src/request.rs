//! The request that a task works for, as the API names it. It labels what engines report of their work and decides nothing.
//!
//! The label is task-local: a task that works for others (a coalesced statement, a stock keeper) takes the label of the first
//! request in its group; background work has none.

use std::fmt;
use std::future::Future;

/// A request by its method and route template, such as `PUT /v1/users/{user_id}/cart/lines/{product_id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLabel {
    pub method: &'static str,
    pub route: &'static str,
}

impl fmt::Display for RequestLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.route)
    }
}

/// Is told of every request that is admitted.
pub trait RequestObserver: fmt::Debug + Send + Sync {
    fn request(&self, label: RequestLabel);
}

tokio::task_local! {
    static CURRENT: Option<RequestLabel>;
}

/// The request that the present task works for; `None` for background work.
pub fn current() -> Option<RequestLabel> {
    CURRENT.try_with(|label| *label).ok().flatten()
}

/// Runs a future for a request.
pub fn scope<F: Future>(label: Option<RequestLabel>, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(label, future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_label_holds_inside_its_scope_alone() {
        let label = RequestLabel { method: "GET", route: "/v1/orders/{order_id}" };
        assert_eq!(current(), None);
        assert_eq!(scope(Some(label), async { current() }).await, Some(label));
        assert_eq!(scope(Some(label), scope(None, async { current() })).await, None);
        assert_eq!(current(), None);
        assert_eq!(label.to_string(), "GET /v1/orders/{order_id}");
    }
}

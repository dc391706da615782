//! The JSON of every list: a page of whole objects and the cursor of the next one.

use mw_store::Page;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::cursor::Scope;

/// A list in the OpenAPI document.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct List<T> {
    items: Vec<T>,
    /// For `cursor`, to get the next page; null on the last one.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// A page with the view of its items.
pub(crate) struct ListView<'a, T, F> {
    page: &'a Page<T>,
    scope: &'a Scope,
    view: F,
}

impl<'a, T, F> ListView<'a, T, F> {
    pub(crate) fn new(page: &'a Page<T>, scope: &'a Scope, view: F) -> Self {
        Self { page, scope, view }
    }
}

impl<'a, T, V: Serialize, F: Fn(&'a T) -> V> Serialize for ListView<'a, T, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let next = self.page.next.as_ref().map(|position| self.scope.encode(&position.0));
        let mut list = serializer.serialize_struct("List", 2)?;
        list.serialize_field("items", &Items(&self.page.items, &self.view))?;
        list.serialize_field("next_cursor", &next)?;
        list.end()
    }
}

/// The JSON of a page whose items are encoded already.
pub(crate) fn write<T>(
    size: usize,
    page: &Page<T>,
    scope: &Scope,
    write: impl Fn(&mut Vec<u8>, &T),
) -> Vec<u8> {
    let mut out = Vec::with_capacity(size + 128);
    out.extend_from_slice(b"{\"items\":[");
    for (index, item) in page.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(&mut out, item);
    }
    out.extend_from_slice(b"],\"next_cursor\":");
    match &page.next {
        // A cursor needs no escaping.
        Some(position) => {
            out.push(b'"');
            out.extend_from_slice(scope.encode(&position.0).as_bytes());
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    out
}

/// A slice with the view of its items.
pub(crate) struct Items<'a, T, F>(pub(crate) &'a [T], pub(crate) F);

impl<'a, T, V: Serialize, F: Fn(&'a T) -> V> Serialize for Items<'a, T, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

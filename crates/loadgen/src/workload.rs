//! Workloads: what users do and how often, as data. The built-in ones have the same file format as custom ones.

mod builtin;
mod template;

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::error::LoadError;

pub(crate) use builtin::filling;
pub use builtin::{builtin_names, builtin_source};
pub(crate) use template::{Piece, Template, Variable};

const METHODS: [&str; 5] = ["GET", "PUT", "POST", "PATCH", "DELETE"];
const FLOWS_MAX: usize = 256;
const CALLS_MAX: usize = 64;
/// Bounds of the API, so that a mistake is reported before a server refuses a hundred thousand lines.
const UNITS_MAX: u64 = 1_000_000_000;
const SKEW_MAX: f64 = 5.0;

#[derive(Debug, Clone)]
pub struct Workload {
    pub name: String,
    pub about: String,
    pub data: Data,
    pub(crate) flows: Vec<Flow>,
}

/// The data before the run, and how users choose from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    pub products: u64,
    pub categories: u64,
    pub zones: u64,
    pub users: u64,
    /// Of each product in each zone.
    pub units: u64,
    /// Carts with lines in them, before the run.
    pub carts: u64,
    /// Orders placed before the run.
    pub orders: u64,
    /// Buyers with two lines in their cart, before the run. Each checks out once: the run ends after the last.
    pub baskets: u64,
    /// Zipf exponent of the choice of products: 0 is uniform, 1 is usual for a shop.
    pub skew: f64,
    /// Hit products, chosen far more often than the rest.
    pub hits: u64,
    /// The share of all choices that are hit products, 0 to 1.
    pub hit_share: f64,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            products: 10_000,
            categories: 50,
            zones: 5,
            users: 100_000,
            units: 100_000_000,
            carts: 0,
            orders: 0,
            baskets: 0,
            skew: 0.0,
            hits: 0,
            hit_share: 0.0,
        }
    }
}

/// Calls that one user makes one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    /// Of all requests, in parts of the sum of all shares.
    pub(crate) share: f64,
    pub(crate) calls: Vec<Call>,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) method: &'static str,
    pub(crate) path: Template,
    pub(crate) body: Option<Template>,
    pub(crate) has_key: bool,
    pub(crate) places_order: bool,
    /// Expected errors, by status and code.
    pub(crate) refusals: Vec<(u16, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    about: String,
    #[serde(default)]
    data: Data,
    flow: Vec<FlowForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowForm {
    share: Spanned<f64>,
    calls: Spanned<Vec<CallForm>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallForm {
    name: String,
    request: Spanned<String>,
    body: Option<Spanned<String>>,
    #[serde(default)]
    key: bool,
    #[serde(default)]
    places_order: bool,
    #[serde(default)]
    refusals: Vec<Spanned<String>>,
}

impl Workload {
    /// A built-in one by its name, or a file by its path.
    pub fn find(name: &str) -> Result<Self, LoadError> {
        if let Some(source) = builtin_source(name) {
            return Self::parse(name, source);
        }
        let path = Path::new(name);
        if path.extension().is_none() && !name.contains('/') && !path.exists() {
            let known = builtin_names().collect::<Vec<_>>().join(", ");
            return Err(LoadError::UnknownWorkload {
                name: name.to_owned(),
                known: format!("there are {known}"),
            });
        }
        let source = std::fs::read_to_string(path)
            .map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
        let stem = path.file_stem().map_or(name.into(), |stem| stem.to_string_lossy());
        Self::parse(&stem, &source)
    }

    pub fn parse(name: &str, source: &str) -> Result<Self, LoadError> {
        let refuse = |why: String| LoadError::Workload { name: name.to_owned(), why };
        let form: FileForm =
            toml::from_str(source).map_err(|error| refuse(error.to_string().trim_end().to_owned()))?;
        if form.flow.is_empty() || form.flow.len() > FLOWS_MAX {
            return Err(refuse(format!("expected 1 to {FLOWS_MAX} [[flow]] tables")));
        }
        let flows =
            form.flow.iter().map(|flow| flow.read(source)).collect::<Result<_, _>>().map_err(refuse)?;
        let workload = Self { name: name.to_owned(), about: form.about, data: form.data, flows };
        workload.check().map_err(refuse)?;
        Ok(workload)
    }

    /// Whether the data gives every variable a value; to be called again after options changed it.
    pub fn check(&self) -> Result<(), String> {
        let data = &self.data;
        let require = |is_so: bool, otherwise: &str| if is_so { Ok(()) } else { Err(otherwise.to_owned()) };
        require((0.0..=SKEW_MAX).contains(&data.skew), "data.skew: expected 0 to 5")?;
        require((0.0..=1.0).contains(&data.hit_share), "data.hit_share: expected 0 to 1")?;
        require(data.hits <= data.products, "data.hits: there are fewer products")?;
        require((1..=UNITS_MAX).contains(&data.units), "data.units: expected 1 to 1000000000")?;
        require(data.products <= 100_000_000, "data.products: expected at most 100000000")?;
        require(data.baskets <= data.users, "data.baskets: there are fewer users")?;
        require(u32::try_from(data.users).is_ok(), "data.users: expected at most 4294967295")?;
        let counts = [("categories", data.categories), ("zones", data.zones), ("users", data.users)];
        for (name, count) in counts {
            let is_fine = count > 0 || !self.needs_products();
            require(is_fine, &format!("data.{name}: expected at least 1"))?;
        }
        require(data.zones <= 100, "data.zones: expected at most 100")?;
        require(data.products > 0 || !self.needs_products(), "data.products: expected at least 1")?;
        require(
            data.orders > 0 || !self.reads_orders(),
            "data.orders: a flow reads an {order} that it did not place, so expected at least 1",
        )
    }

    /// Whether any call needs products.
    pub(crate) fn needs_products(&self) -> bool {
        self.calls().any(|call| call.variables() != 0)
    }

    /// Whether a buyer makes several calls, during which no other flow may have the same buyer.
    pub(crate) fn keeps_buyers(&self) -> bool {
        let is_kept = |flow: &Flow| flow.calls.len() > 1 && flow.variables() & Variable::Buyer.bit() != 0;
        self.flows.iter().any(is_kept)
    }

    fn calls(&self) -> impl Iterator<Item = &Call> {
        self.flows.iter().flat_map(|flow| &flow.calls)
    }

    fn reads_orders(&self) -> bool {
        self.flows.iter().any(Flow::reads_orders)
    }
}

impl Flow {
    pub(crate) fn variables(&self) -> u16 {
        self.calls.iter().fold(0, |set, call| set | call.variables())
    }

    /// Whether it reads an order before it has placed one.
    pub(crate) fn reads_orders(&self) -> bool {
        let wanted = Variable::Order.bit() | Variable::OrderUser.bit();
        let before = self.calls.iter().take_while(|call| !call.places_order);
        let placing = self.calls.iter().find(|call| call.places_order);
        before.chain(placing).any(|call| call.variables() & wanted != 0)
    }
}

impl Call {
    pub(crate) fn variables(&self) -> u16 {
        self.path.variables() | self.body.as_ref().map_or(0, Template::variables)
    }

    /// Whether the call is idempotent.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.has_key || matches!(self.method, "GET" | "PUT" | "DELETE")
    }
}

impl FlowForm {
    fn read(&self, source: &str) -> Result<Flow, String> {
        let share = *self.share.get_ref();
        if !(share > 0.0 && share.is_finite()) {
            let line = line_of(source, self.share.span().start);
            return Err(format!("line {line}: share: expected a number above 0"));
        }
        let calls = self.calls.get_ref();
        if calls.is_empty() || calls.len() > CALLS_MAX {
            let line = line_of(source, self.calls.span().start);
            return Err(format!("line {line}: calls: expected 1 to {CALLS_MAX}"));
        }
        Ok(Flow { share, calls: calls.iter().map(|call| call.read(source)).collect::<Result<_, _>>()? })
    }
}

impl CallForm {
    fn read(&self, source: &str) -> Result<Call, String> {
        let at = |span: std::ops::Range<usize>, field: &str, why: &str| {
            format!("line {}: {field} of `{}`: {why}", line_of(source, span.start), self.name)
        };
        let request = |why: &str| at(self.request.span(), "request", why);
        let (method, path) = self
            .request
            .get_ref()
            .split_once(' ')
            .ok_or_else(|| request("expected a method and a path, like \"GET /v1/categories\""))?;
        let method = METHODS
            .into_iter()
            .find(|known| *known == method)
            .ok_or_else(|| request("expected GET, PUT, POST, PATCH or DELETE"))?;
        if !path.starts_with('/') || !path.bytes().all(|it| it.is_ascii_graphic()) {
            return Err(request("expected a path of visible characters that begins with /"));
        }
        let path = Template::parse(path).map_err(|why| request(&why))?;
        let body = self
            .body
            .as_ref()
            .map(|body| Template::parse(body.get_ref()).map_err(|why| at(body.span(), "body", &why)));
        let refusals = self.refusals.iter().map(|refusal| {
            read_refusal(refusal.get_ref()).ok_or_else(|| {
                at(refusal.span(), "refusals", "expected a status and a code, like \"409 out_of_stock\"")
            })
        });
        if self.places_order && !self.key {
            return Err(request(
                "expected key = true for a call that places an order, so that it can be retried",
            ));
        }
        Ok(Call {
            name: self.name.clone(),
            method,
            path,
            body: body.transpose()?,
            has_key: self.key,
            places_order: self.places_order,
            refusals: refusals.collect::<Result<_, _>>()?,
        })
    }
}

fn read_refusal(text: &str) -> Option<(u16, String)> {
    let (status, code) = text.split_once(' ')?;
    let status = status.parse().ok().filter(|status| (400..600).contains(status))?;
    (!code.is_empty()).then(|| (status, code.to_owned()))
}

fn line_of(source: &str, at: usize) -> usize {
    source.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests;

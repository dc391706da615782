//! The JSON of partitions and bucket plans. `mw partitions` prints the same.

use mw_domain::Timestamp;
use mw_shop::operations::{PlanChange, RankedPartition, Run};
use mw_store::partitions::{BucketPlan, BucketedTable};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::deserialize;

/// The noteworthy partitions, the heaviest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Partitions)]
pub struct PartitionListView {
    items: Vec<PartitionView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Partition)]
pub(crate) struct PartitionView {
    table: String,
    /// The id as the API shows it.
    key: String,
    /// Which partition of the key; empty where a key has one.
    bucket: String,
    /// Lower bounds of the last window.
    reads_per_s: f64,
    writes_per_s: f64,
    /// The true rate of reads and writes together is at most so much higher.
    error_per_s: f64,
    rows: u64,
    bytes: u64,
    /// Of the table's reads and writes, 0 to 1.
    share: f64,
    /// `ok`, `hot` or `wide`.
    #[schema(value_type = String)]
    verdict: &'static str,
    /// The bucket plan of the key.
    #[schema(required)]
    plan: Option<PlanView>,
    updated_at: String,
}

impl PartitionListView {
    pub fn new(partitions: Vec<RankedPartition>, now: Timestamp) -> Self {
        let view = |RankedPartition { stats, plan }| PartitionView {
            verdict: stats.state.name(),
            table: stats.table,
            key: stats.key,
            bucket: stats.bucket,
            reads_per_s: stats.reads_per_s,
            writes_per_s: stats.writes_per_s,
            error_per_s: stats.error_per_s,
            rows: stats.rows,
            bytes: stats.bytes,
            share: stats.share,
            plan: plan.map(|plan| PlanView::new(&plan, std::slice::from_ref(&plan), now)),
            updated_at: stats.updated_at.to_string(),
        };
        Self { items: partitions.into_iter().map(view).collect() }
    }

    /// The cells of a table for people, a row a partition.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let heads =
            ["table", "key", "bucket", "reads/s", "writes/s", "rows", "bytes", "share", "verdict", "plan"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(self.items.iter().map(|item| {
            vec![
                item.table.clone(),
                item.key.clone(),
                item.bucket.clone(),
                format!("{:.1}", item.reads_per_s),
                format!("{:.1}", item.writes_per_s),
                item.rows.to_string(),
                item.bytes.to_string(),
                format!("{:.2} %", item.share * 100.0),
                item.verdict.to_owned(),
                item.plan.as_ref().map_or_else(String::new, |plan| plan.buckets.to_string()),
            ]
        }));
        rows
    }
}

/// A bucket plan of a key.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = BucketPlan)]
pub struct PlanView {
    table: String,
    key: String,
    buckets: u32,
    /// When it starts.
    from: String,
    /// `auto` or `operator`.
    #[schema(value_type = String)]
    made_by: &'static str,
    /// `past` where a later plan of the key has started, `current`, or `coming`.
    #[schema(value_type = String)]
    state: &'static str,
}

impl PlanView {
    /// `all` has every plan of the same key.
    pub fn new(plan: &BucketPlan, all: &[BucketPlan], now: Timestamp) -> Self {
        let is_over = all.iter().any(|other| {
            let follows = other.from > plan.from && other.from <= now;
            (&other.table, &other.key) == (&plan.table, &plan.key) && follows
        });
        let state = match plan.from > now {
            true => "coming",
            false if is_over => "past",
            false => "current",
        };
        Self {
            table: plan.table.clone(),
            key: plan.key.clone(),
            buckets: plan.buckets,
            from: plan.from.to_string(),
            made_by: plan.made_by.name(),
            state,
        }
    }
}

/// The plans of all keys, and what applies to keys without one.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BucketPlans)]
pub struct PlanListView {
    items: Vec<PlanView>,
    defaults: Vec<DefaultPlanView>,
}

/// The buckets of keys without a plan.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DefaultBuckets)]
pub(crate) struct DefaultPlanView {
    #[schema(value_type = String)]
    table: &'static str,
    buckets: u32,
    buckets_max: u32,
    /// What is divided, and what the key is.
    #[schema(value_type = String)]
    divides: &'static str,
}

impl PlanListView {
    pub fn new(
        plans: &[BucketPlan],
        tables: &[BucketedTable],
        (table, key): (Option<&str>, Option<&str>),
        now: Timestamp,
    ) -> Self {
        let is_selected = |plan: &&BucketPlan| {
            table.is_none_or(|table| table == plan.table) && key.is_none_or(|key| key == plan.key)
        };
        let defaults = tables.iter().filter(|bucketed| table.is_none_or(|table| table == bucketed.table));
        Self {
            items: plans.iter().filter(is_selected).map(|plan| PlanView::new(plan, plans, now)).collect(),
            defaults: defaults
                .map(|bucketed| DefaultPlanView {
                    table: bucketed.table,
                    buckets: bucketed.default_buckets,
                    buckets_max: bucketed.buckets_max,
                    divides: bucketed.what,
                })
                .collect(),
        }
    }

    /// The cells of the defaults, for people.
    pub fn default_cells(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["table", "buckets", "at most", "divides"].map(str::to_owned).to_vec()];
        rows.extend(self.defaults.iter().map(|row| {
            let (buckets, buckets_max) = (row.buckets.to_string(), row.buckets_max.to_string());
            vec![row.table.to_owned(), buckets, buckets_max, row.divides.to_owned()]
        }));
        rows
    }

    /// The cells of the plans, for people; empty where there is none.
    pub fn plan_cells(&self) -> Vec<Vec<String>> {
        let heads = ["table", "key", "buckets", "from", "made by", "state"];
        let rows = self.items.iter().map(|row| {
            let (made_by, state) = (row.made_by.to_owned(), row.state.to_owned());
            vec![
                row.table.clone(),
                row.key.clone(),
                row.buckets.to_string(),
                row.from.clone(),
                made_by,
                state,
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        if rows.is_empty() {
            return rows;
        }
        std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows).collect()
    }
}

/// The result of a change, or of its dry run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChangedBucketPlan)]
pub struct ChangedPlanView {
    /// Whether the plan was made; `false` for a dry run.
    pub done: bool,
    #[serde(flatten)]
    pub plan: PlanView,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetBucketPlan)]
pub(crate) struct SetPlanBody {
    #[serde(deserialize_with = "deserialize::text")]
    table: String,
    /// A user id, a zone or a category; empty for the list of the whole shop.
    #[serde(default)]
    key: String,
    buckets: u32,
    /// When it starts; not sent: as soon as every process knows it.
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    from: Option<String>,
    /// Without it the call is a dry run.
    #[serde(default)]
    confirm: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EndBucketPlan)]
pub(crate) struct EndPlanBody {
    #[serde(deserialize_with = "deserialize::text")]
    table: String,
    #[serde(default)]
    key: String,
    #[serde(default, deserialize_with = "deserialize::optional_text")]
    from: Option<String>,
    #[serde(default)]
    confirm: bool,
}

/// A `from` that is not a time.
#[derive(Debug)]
pub(crate) struct BadInstant;

fn instant(text: Option<String>) -> Result<Option<Timestamp>, BadInstant> {
    text.map(|text| Timestamp::parse(&text).map_err(|_| BadInstant)).transpose()
}

const fn run(confirm: bool) -> Run {
    if confirm { Run::Confirmed } else { Run::Dry }
}

impl SetPlanBody {
    pub(crate) fn into_change(self) -> Result<(PlanChange, Run), BadInstant> {
        let Self { table, key, buckets, from, confirm } = self;
        Ok((PlanChange { table, key, buckets: Some(buckets), from: instant(from)? }, run(confirm)))
    }
}

impl EndPlanBody {
    pub(crate) fn into_change(self) -> Result<(PlanChange, Run), BadInstant> {
        let Self { table, key, from, confirm } = self;
        Ok((PlanChange { table, key, buckets: None, from: instant(from)? }, run(confirm)))
    }
}

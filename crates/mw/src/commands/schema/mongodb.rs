//! `mw schema` on MongoDB: collections, validators, indexes and shard keys.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_store_mongodb::Options;
use mw_store_mongodb::connect::connect;
use mw_store_mongodb::schema::{Drift, Schema};

use super::{done, report};
use crate::config::Config;
use crate::{runtime, terminal};

/// How long a plan waits for servers, which it does not need.
const PLAN_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn plan(config: &Config) -> Result<ExitCode> {
    let schema = Schema::new(&config.mongodb);
    terminal::print(&schema.plan())?;
    // The plan needs no servers; where there are some, what the keys would do to their documents is worth knowing.
    let found = runtime::single()?.block_on(async {
        let brief = Options { request_timeout: PLAN_TIMEOUT, ..config.mongodb.clone() };
        let client = connect(&brief).await.ok()?;
        schema.drift(&client).await.ok()
    });
    for drift in found.into_iter().flatten() {
        if matches!(drift, Drift::WithoutKey { .. }) {
            terminal::note(&drift.to_string());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What apply does not change is listed, and the exit code says so.
pub(super) fn apply(config: &Config) -> Result<ExitCode> {
    terminal::log(&config.log);
    let schema = Schema::new(&config.mongodb);
    let (run, left) = runtime::single()?.block_on(async {
        let client = connect(&config.mongodb).await.context("connect to MongoDB")?;
        let run = schema.apply(&client, &|what| terminal::note(what)).await.context("apply the schema")?;
        let left = schema.drift(&client).await.context("compare the schema")?;
        anyhow::Ok((run, left))
    })?;
    let left: Vec<Drift> = left.into_iter().filter(|it| !matches!(it, Drift::WithoutKey { .. })).collect();
    if left.is_empty() {
        terminal::print(&format!("the schema of {} is up to date: {}\n", schema.database(), done(run)))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::print(&format!("{} in {}; left as it is:\n", done(run), schema.database()))?;
    for drift in &left {
        terminal::print(&format!("  {drift}\n"))?;
    }
    Ok(ExitCode::FAILURE)
}

pub(super) fn drift(config: &Config) -> Result<ExitCode> {
    terminal::log(&config.log);
    let schema = Schema::new(&config.mongodb);
    let drifts = runtime::single()?.block_on(async {
        let client = connect(&config.mongodb).await.context("connect to MongoDB")?;
        schema.drift(&client).await.context("compare the schema")
    })?;
    terminal::print(&report(schema.database(), &drifts))?;
    Ok(if drifts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

//! The command line of `linerate doctor`.

use std::path::PathBuf;

use clap::Args;

use crate::units;

#[derive(Debug, Args)]
pub struct DoctorFlags {
    /// Other hosts to look at, by their agents; probes run between all of them
    #[arg(value_name = "HOST[:PORT]", value_parser = units::host)]
    pub hosts: Vec<String>,
    /// Print this host's inventory as JSON, and judge nothing
    #[arg(long, conflicts_with_all = ["hosts", "from", "quick", "details", "save"])]
    pub inventory: bool,
    /// Look at inventories in this folder (*.json) instead; needs no agent
    #[arg(long, value_name = "DIR", conflicts_with_all = ["hosts", "quick", "save"])]
    pub from: Option<PathBuf>,
    /// Probe without load and do not watch counters
    #[arg(long)]
    pub quick: bool,
    /// Say for each finding what was seen, why it matters and how to fix it
    #[arg(long, short)]
    pub details: bool,
    /// Write a page with findings, measurements and a picture to this file
    #[arg(long, value_name = "FILE", conflicts_with = "inventory")]
    pub html: Option<PathBuf>,
    /// Write the inventory of each host to DIR/HOST.json, for --from
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Fix what port settings can fix: show the plan, ask, set the ports on trial, look again, ask whether to keep them
    #[arg(long, conflicts_with = "inventory")]
    pub fix: bool,
    /// Only show what --fix would do
    #[arg(long, requires = "fix")]
    pub dry_run: bool,
    /// Do not ask. Keep the settings if the findings are gone, put them back if not
    #[arg(long, short, requires = "fix", conflicts_with = "dry_run")]
    pub yes: bool,
    /// The intent for findings of priorities and shares, as for `linerate qos apply`
    #[arg(long, value_name = "FILE", requires = "fix")]
    pub qos: Option<PathBuf>,
    /// Put every port back unless it is kept within this time, at most 1h; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "60s", requires = "fix")]
    pub within: u32,
}

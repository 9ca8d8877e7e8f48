//! `linerate drain`, `linerate undrain`, `linerate place`, `linerate fleet`

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use linerate_api::{DrainRequest, ForgetGuest, ForgetHost, ModeChoice, PlaceRequest, UndrainRequest};

use crate::units;

/// `linerate drain`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DrainFlags {
    #[command(subcommand)]
    pub command: Option<DrainCommand>,
    /// Name of the host, which must be this one: guards against the wrong terminal
    #[arg(value_name = "HOST")]
    pub host: Option<String>,
    /// The destinations. Each guest goes to the one that suits it [default: every other host of a fleet that shares
    /// etcd]
    #[arg(long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = units::host)]
    pub to: Vec<String>,
    /// Guests that stay
    #[arg(long, value_name = "GUEST,…", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub keep: Vec<String>,
    #[command(flatten)]
    pub rules: RuleFlags,
    /// Hosts that are emptied by ssh, one after another. Each gets its guests back before the next one
    #[arg(
        long, value_name = "[USER@]HOST,…", value_delimiter = ',', value_parser = units::ssh_target, requires = "then",
        conflicts_with_all = ["host", "dry_run", "detach", "apart", "together"]
    )]
    pub each: Vec<String>,
    /// Command that sh runs here after each host is empty, with LINERATE_HOST and LINERATE_CONNECT set; a failure stops
    /// the run. When it ends, the host gets its guests back
    #[arg(long, value_name = "COMMAND", requires = "each", value_parser = NonEmptyStringValueParser::new())]
    pub then: Option<String>,
    /// How guest RAM is moved: auto (direct where a guest allows it), direct, stream (QEMU's own streams)
    #[arg(long, value_name = "MODE", value_parser = units::mode, default_value = "auto")]
    pub mode: ModeChoice,
    /// Longest downtime of each guest, such as 300ms; a bare number is milliseconds [default: 300ms]
    #[arg(long, value_name = "TIME", value_parser = units::blackout_ms)]
    pub max_blackout: Option<u32>,
    /// Slow the CPUs of guests that write faster than the links carry
    #[arg(long)]
    pub throttle: bool,
    /// Show where each guest would go, or why it cannot move. Each migration is tried without copying; nothing is
    /// changed
    #[arg(long, conflicts_with_all = ["detach", "quiet"])]
    pub dry_run: bool,
    /// Begin, print the drain's name and end
    #[arg(long, conflicts_with = "quiet")]
    pub detach: bool,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

impl DrainFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> DrainRequest {
        DrainRequest {
            host: self.host.clone(),
            to: self.to.clone(),
            keep: self.keep.clone(),
            apart: self.rules.apart.clone(),
            together: self.rules.together.clone(),
            mode: self.mode,
            max_blackout_ms: self.max_blackout,
            throttle: self.throttle,
        }
    }
}

/// Which guests must be on different hosts, and which on one.
#[derive(Debug, Args)]
pub struct RuleFlags {
    /// Guests of which no two may be on one host; 'db-*' stands for all names that begin with db-. Repeat it for each
    /// list. The lists in the table placement of agent.toml hold too
    #[arg(long, value_name = "GUEST,…", value_parser = units::names)]
    pub apart: Vec<Vec<String>>,
    /// Guests that go to one host or stay, named like those of --apart. Repeat it for each list. The lists in the table
    /// placement of agent.toml hold too
    #[arg(long, value_name = "GUEST,…", value_parser = units::names)]
    pub together: Vec<Vec<String>>,
}

/// What is done with a drain that was begun.
#[derive(Debug, Subcommand)]
pub enum DrainCommand {
    /// Show the drain of this host: the one that is open, or the last one
    Status(DrainIdFlags),
    /// Watch a drain to its end
    Attach(DrainIdFlags),
    /// Start nothing new; guests that are being moved arrive
    Pause(DrainIdFlags),
    /// Go on with a paused drain
    Resume(DrainIdFlags),
    /// Cancel the migrations that run, and start no more. Guests that have moved stay where they are
    Abort(DrainIdFlags),
}

#[derive(Debug, Args)]
pub struct DrainIdFlags {
    /// Name of the drain, or how it begins [default: the last one of this host]
    #[arg(value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub id: Option<String>,
}

/// Flags of `linerate undrain`.
#[derive(Debug, Args)]
pub struct UndrainFlags {
    /// Name of the host, which must be this one: guards against the wrong terminal
    #[arg(value_name = "HOST")]
    pub host: Option<String>,
    /// Begin, and do not watch; the agent goes on
    #[arg(long)]
    pub detach: bool,
    /// Do not bring this guest back any more, as its host is gone for good. Nothing else is done. A name or a UUID
    #[arg(long, value_name = "GUEST", conflicts_with = "detach")]
    pub forget: Option<String>,
    /// With --forget: only show whether that can be done
    #[arg(long, requires = "forget")]
    pub dry_run: bool,
}

impl UndrainFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> UndrainRequest {
        UndrainRequest { host: self.host.clone() }
    }

    /// What to ask of the agent with `--forget`.
    pub fn forget_request(&self) -> Option<ForgetGuest> {
        let (host, dry_run) = (self.host.clone(), self.dry_run);
        self.forget.clone().map(|guest| ForgetGuest { guest, host, dry_run })
    }
}

/// `linerate place`
#[derive(Debug, Args)]
pub struct PlaceFlags {
    /// Name of a guest of this host
    #[arg(value_name = "GUEST")]
    pub guest: String,
    /// The hosts to look at [default: every other host of a fleet that shares etcd]
    #[arg(long, value_name = "HOST[:PORT],…", value_delimiter = ',', value_parser = units::host)]
    pub to: Vec<String>,
    #[command(flatten)]
    pub rules: RuleFlags,
    /// Show for each host what the guest lacks there
    #[arg(long)]
    pub explain: bool,
}

impl PlaceFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> PlaceRequest {
        let RuleFlags { apart, together } = &self.rules;
        PlaceRequest {
            guest: self.guest.clone(),
            to: self.to.clone(),
            apart: apart.clone(),
            together: together.clone(),
        }
    }
}

/// `linerate fleet`
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show whether the store answers, what its hosts have together, and which drains go on
    Status,
    /// Show the hosts that the store knows. Without etcd they are as a drain asked them last
    Hosts,
    /// List the drains of this host, or of all hosts that share etcd, newest first
    Drains,
    /// Have the store forget a host that is gone for good: its cordon, its drains, memory that is reserved there
    Forget(FleetForgetFlags),
}

/// Flags of `linerate fleet forget`.
#[derive(Debug, Args)]
pub struct FleetForgetFlags {
    /// Name of the host, as `linerate fleet hosts` shows it
    #[arg(value_name = "HOST")]
    pub host: String,
    /// Only show what would be forgotten
    #[arg(long)]
    pub dry_run: bool,
}

impl FleetForgetFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> ForgetHost {
        ForgetHost { host: self.host.clone(), dry_run: self.dry_run }
    }
}

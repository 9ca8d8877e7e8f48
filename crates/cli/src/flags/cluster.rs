//! The command line of `linerate cluster`, `token`, `join`, `host` and `certificate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::units;

/// Which agent's files: these commands work without a running agent.
#[derive(Debug, Args)]
pub struct ConfigFlag {
    /// Configuration of this host's agent, which names the folders [default: /etc/linerate/agent.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make a cluster: its authority is on this host, which is its first member. Needs no running agent
    Init(InitFlags),
    /// Change the cluster's authority, one step at a time: run it here again until it says that it is done. Guests can
    /// move meanwhile
    Rotate(RotateFlags),
}

#[derive(Debug, Args)]
pub struct RotateFlags {
    /// Do not wait for hosts that have not followed: they must join again
    #[arg(long)]
    pub leave_behind: bool,
    #[command(flatten)]
    pub config: ConfigFlag,
}

#[derive(Debug, Args)]
pub struct InitFlags {
    /// Name of the cluster: a-z, 0-9, '-', '.', '_' [default: linerate]
    #[arg(long)]
    pub name: Option<String>,
    /// Name of this host in it [default: `name` of the configuration, in lower case]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    #[command(flatten)]
    pub config: ConfigFlag,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Print the line with which another host joins. Anyone who reads it can join. It works once, for a short time
    Create(TokenFlags),
    /// List tokens: which can be used, were used, or have expired. Nothing in the list is secret
    List(ConfigFlag),
    /// Take a token back
    Revoke {
        /// Its id, as in `linerate token list`
        id: String,
        #[command(flatten)]
        config: ConfigFlag,
    },
}

#[derive(Debug, Args)]
pub struct TokenFlags {
    /// How long it can be used, at most 24h; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "15m")]
    pub ttl: u32,
    /// Only a host of this name may join with it, also if a host of this name has joined before
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    #[command(flatten)]
    pub config: ConfigFlag,
}

#[derive(Debug, Args)]
pub struct JoinFlags {
    /// Where the authority's agent lets hosts join, HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]", value_parser = units::host)]
    pub address: String,
    /// The token of `linerate token create`; - reads it from standard input, so that other users do not see it in the
    /// list of processes
    pub token: String,
    /// Name of this host in the cluster [default: `name` of the configuration, in lower case]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// Join even if this host has an identity, and discard that one
    #[arg(long)]
    pub replace: bool,
    #[command(flatten)]
    pub config: ConfigFlag,
}

#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts that have a valid certificate of this host's authority
    List(ConfigFlag),
    /// Revoke a host's certificates: others refuse it from then on
    Revoke {
        /// Name of the host, as in `linerate host list`
        name: String,
        #[command(flatten)]
        config: ConfigFlag,
    },
}

#[derive(Debug, Subcommand)]
pub enum CertificateCommand {
    /// Show this host's certificate: its name, until when it is valid, and which authorities it trusts
    Show(ConfigFlag),
    /// Renew this host's certificate. The agent does it by itself from day 30 on
    Renew {
        /// The agent of the authority's host, if it is not where it was
        #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
        from: Option<String>,
        #[command(flatten)]
        config: ConfigFlag,
    },
}

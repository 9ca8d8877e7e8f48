//! The command line of `linerate bench`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use linerate_api::{BenchCpu, BenchRequest, BenchTest, BenchTransport};

use crate::units::{self, UnitError};

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Messages there and back, by the rules of the Intel MPI Benchmarks: latency and bandwidth of each link, by size
    Pingpong(PingPongFlags),
    /// All links at once, in each direction and in both: the most that a migration can reach
    Bandwidth(BandwidthFlags),
}

/// What all measurements have.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true).args(["to", "local"]))]
pub struct BenchFlags {
    /// The other host's agent
    #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
    pub to: Option<String>,
    /// Both ends in this process, without an agent: over loopback, or over these addresses of this host
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', num_args = 0..=1, default_missing_value = "127.0.0.1")]
    pub local: Option<Vec<IpAddr>>,
    /// Measure only links in these networks, such as 10.0.1.0/24,10.0.2.0/24 [default: all]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = units::network, conflicts_with = "local")]
    pub links: Vec<String>,
    /// What carries the messages
    #[arg(long, value_enum, default_value = "tcp")]
    pub transport: Transport,
    /// Connections for each link [default: 1; bandwidth: as many as a migration opens]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub channels: Option<u16>,
    /// Where threads run on both hosts: near or far from the port's NUMA node, or on the CPU of this number
    #[arg(long, value_name = "near|far|CPU", value_parser = cpu)]
    pub cpu: Option<BenchCpu>,
    /// Speed of each link, such as 25G, where a port reports none or a wrong one; for the percentage
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub speed: Option<u64>,
    /// Measure although guests are being migrated, and go on when a migration begins
    #[arg(long)]
    pub force: bool,
    /// Write the main chart to this file: curves of bandwidth, or bars of rates
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write all charts and all figures (JSON) into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print nothing but the result and errors
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct PingPongFlags {
    #[command(flatten)]
    common: BenchFlags,
    /// Sizes of messages, such as 4,64KiB,4MiB [default: 0 and the powers of two up to 4 MiB]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = units::size)]
    sizes: Vec<u32>,
    /// Most repetitions of a size
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    repetitions: u32,
    /// How long one size may take; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::bench_ms, default_value = "10s")]
    time_per_size: u32,
}

#[derive(Debug, Args)]
pub struct BandwidthFlags {
    #[command(flatten)]
    common: BenchFlags,
    /// How long each of the three directions takes; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::bench_ms, default_value = "5s")]
    time: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Transport {
    /// TCP sockets
    Tcp,
    /// RDMA, on links whose two ports have it
    Rdma,
}

fn cpu(text: &str) -> Result<BenchCpu, UnitError> {
    match text {
        "near" => Ok(BenchCpu::Near),
        "far" => Ok(BenchCpu::Far),
        number => number
            .parse()
            .map(BenchCpu::Number)
            .map_err(|_| UnitError::NotAChoice("near, far or the number of a CPU")),
    }
}

impl BenchCommand {
    /// What all measurements have.
    pub fn flags(&self) -> &BenchFlags {
        match self {
            BenchCommand::Pingpong(flags) => &flags.common,
            BenchCommand::Bandwidth(flags) => &flags.common,
        }
    }

    /// What to ask of the agent.
    pub fn request(&self) -> BenchRequest {
        let flags = self.flags();
        let test = match self {
            BenchCommand::Pingpong(flags) => BenchTest::Pingpong {
                sizes: flags.sizes.clone(),
                repetitions: flags.repetitions,
                time_per_size_ms: flags.time_per_size,
            },
            BenchCommand::Bandwidth(flags) => BenchTest::Bandwidth { time_ms: flags.time },
        };
        BenchRequest {
            to: flags.to.clone().unwrap_or_default(),
            links: flags.links.clone(),
            transport: match flags.transport {
                Transport::Tcp => BenchTransport::Tcp,
                Transport::Rdma => BenchTransport::Rdma,
            },
            channels: flags.channels.unwrap_or(0),
            cpu: flags.cpu.unwrap_or_default(),
            speed_mbps: flags.speed.map(|bytes| u32::try_from(bytes / 125_000).unwrap_or(u32::MAX)),
            force: flags.force,
            test,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::flags::{Command, Flags};

    use super::*;

    fn bench(line: &str) -> BenchCommand {
        match Flags::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Bench(command) => command,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_ping_pong_with_everything() {
        let command = bench(
            "linerate bench pingpong --to beta --links 10.0.1.0/24 --transport tcp --channels 4 --cpu near --speed 25G \
             --force --sizes 0,4,64KiB,4MiB --repetitions 50 --time-per-size 500ms --out /tmp/x",
        );
        let expected = BenchRequest {
            to: "beta".into(),
            links: vec!["10.0.1.0/24".into()],
            transport: BenchTransport::Tcp,
            channels: 4,
            cpu: BenchCpu::Near,
            speed_mbps: Some(25_000),
            force: true,
            test: BenchTest::Pingpong {
                sizes: vec![0, 4, 65_536, 4 << 20],
                repetitions: 50,
                time_per_size_ms: 500,
            },
        };
        assert_eq!(command.request(), expected);
    }

    #[test]
    fn local_is_loopback_unless_addresses_are_given() {
        let local = |line: &str| bench(line).flags().local.clone().unwrap();
        let loopback: IpAddr = [127, 0, 0, 1].into();
        assert_eq!(local("linerate bench bandwidth --local --time 2"), [loopback]);
        assert_eq!(local("linerate bench bandwidth --local 10.0.0.1,fd00::1").len(), 2);
        let command = bench("linerate bench bandwidth --local --cpu 3");
        assert_eq!(command.request().test, BenchTest::Bandwidth { time_ms: 5000 });
        assert_eq!(command.request().cpu, BenchCpu::Number(3));
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error_with_a_reason() {
        for (line, words) in [
            ("linerate bench pingpong", "--to"),
            ("linerate bench pingpong --to beta --local", "cannot be used with"),
            ("linerate bench pingpong --local --links 10.0.0.0/8", "cannot be used with"),
            ("linerate bench pingpong --to beta --sizes 5MiB", "at most 4 MiB"),
            ("linerate bench pingpong --to beta --cpu close", "near, far"),
            ("linerate bench pingpong --to beta --channels 0", "0"),
            ("linerate bench bandwidth --to beta --time 10min", "between 1ms and 300s"),
            ("linerate bench bandwidth --to beta --transport smoke", "tcp"),
        ] {
            let error = Flags::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(words), "{line}: {error}");
        }
    }
}

//! The handle of an agent, tried on a stand-in that reads its configuration and listens. As root.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use linerate_lab::{Agent, AgentOptions, Lab, LabError, LinkSpec};

// Perl is part of every Debian; the stand-in must open a UNIX socket, which a shell cannot.
const STAND_IN: &str = r#"#!/usr/bin/perl
use strict; use IO::Socket::UNIX;
die "not: agent --config FILE" unless "$ARGV[0] $ARGV[1]" eq "agent --config";
open(my $file, '<', $ARGV[2]) or die; my $text = join '', <$file>;
my ($path) = $text =~ /^socket = "(.*)"$/m or die "no socket in $text";
$text =~ /^listen = \["10\.\d+\.0\.\d:7979", "10\.\d+\.1\.\d:7979"\]$/m or die "listen: $text";
$text =~ m{^file_roots = \[.*"/.*"}m or die "roots: $text";
$text =~ /^extra = 1$/m or die "extra: $text";
$text =~ /^\[\[qemu\]\]\nname = "ten"\nbinary = ".*"\ndata_dirs = \[\n? *".*"/m or die "qemu: $text";
unlink $path; print "started\n"; $| = 1;
my $socket = IO::Socket::UNIX->new(Local => $path, Listen => 5) or die $!;
while (1) { $socket->accept }
"#;

fn script(lab: &Lab, text: &str) -> PathBuf {
    let path = lab.directory().join("linerate");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn options(binary: PathBuf) -> AgentOptions {
    AgentOptions { binary: Some(binary), configuration: "extra = 1\n".to_owned(), ..AgentOptions::default() }
}

#[test]
fn an_agent_is_started_killed_and_restarted() {
    let lab = Lab::builder().links([LinkSpec::unshaped(); 2]).build().unwrap();
    let mut agent = Agent::start(&lab.hosts()[0], options(script(&lab, STAND_IN))).unwrap();
    let first = agent.pid();
    assert!(Path::new(&format!("/proc/{first}")).exists());
    assert!(!agent.kill().unwrap().success());
    agent.restart().unwrap();
    assert_ne!(agent.pid(), first);
    assert!(agent.process().ended().unwrap().is_none());
    agent.stop().unwrap();
    assert!(agent.process().ended().unwrap().is_some());
    agent.restart().unwrap();
    agent.freeze().unwrap();
    agent.restart().unwrap();
    let last = agent.pid();
    drop(agent);
    assert!(!Path::new(&format!("/proc/{last}")).exists());
}

#[test]
fn an_agent_that_fails_at_start_shows_the_reason() {
    let lab = Lab::builder().link(LinkSpec::unshaped()).build().unwrap();
    let binary = script(&lab, "#!/bin/sh\necho 'no such key: frobnicate' >&2; exit 3\n");
    let error = Agent::start(&lab.hosts()[0], options(binary)).unwrap_err();
    assert!(matches!(error, LabError::Ended { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("no such key: frobnicate") && text.contains("agent.log"), "{text}");
}

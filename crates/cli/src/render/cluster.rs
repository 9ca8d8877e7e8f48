//! Tokens, hosts of a cluster and a certificate, in tables.

use linerate_agent::cluster::utc_of_ms;

use super::format::clean;
use super::paint::Paint;
use super::table::{Align, Table};
use crate::documents::{CertificateShown, HostCertificate, TokenListed, TokenState};

/// A line for each token: its id, host, state and end.
pub fn tokens(tokens: &[TokenListed], paint: Paint) -> String {
    if tokens.is_empty() {
        return "no tokens; make one with `linerate token create`\n".into();
    }
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Left, Align::Left]);
    table.row(["ID", "STATE", "FOR", "UNTIL"].map(|head| paint.dim(head)));
    for one in tokens {
        let state = match one.state {
            TokenState::Open => paint.green("open"),
            TokenState::Used => paint.dim("used"),
            TokenState::Expired => paint.dim("expired"),
        };
        let host = one.host.as_deref().map_or_else(|| "any host".to_owned(), clean);
        table.row([paint.bold(&clean(&one.id)), state, host, utc_of_ms(one.expires_unix_ms)]);
    }
    text(&table)
}

/// A line for each valid certificate: its host, serial number and end.
pub fn hosts(hosts: &[HostCertificate], paint: Paint) -> String {
    if hosts.is_empty() {
        return "no host has a valid certificate\n".into();
    }
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Left]);
    table.row(["HOST", "CERTIFICATE UNTIL", "SERIAL"].map(|head| paint.dim(head)));
    for one in hosts {
        table.row([paint.bold(&clean(&one.host)), utc_of_ms(one.ends_unix_ms), clean(&one.serial)]);
    }
    text(&table)
}

/// Name, authorities and times of this host's certificate.
pub fn certificate(shown: &CertificateShown, ends: &str, renewed_from: &str, paint: Paint) -> String {
    let mut table = Table::new(&[Align::Left, Align::Left]);
    let mut row = |name: &str, value: String| table.row([paint.dim(name), value]);
    row("Name", paint.bold(&clean(&shown.name)));
    row("Until", ends.to_owned());
    row("Renewed from", renewed_from.to_owned());
    row("Serial", clean(&shown.serial));
    for one in &shown.authorities {
        let list = match one.list_number {
            0 => "no revocation list".to_owned(),
            number => format!("revocation list {number}"),
        };
        row("Trusts", format!("{}, {list}", clean(&one.id)));
    }
    if shown.has_authority {
        row("Authority", "its key is on this host".to_owned());
    }
    if let Some(problem) = &shown.problem {
        row("Problem", paint.red(&clean(problem)));
    }
    text(&table)
}

fn text(table: &Table) -> String {
    table.lines(0).join("\n") + "\n"
}

//! `linerate cluster | token | join | host | certificate`: they write this host's files, and ask its agent to read
//! them.

use std::io::{BufRead, Read};
use std::time::Duration;

use linerate_agent::cluster::operations::{self, NewToken};
use linerate_agent::cluster::rotation::{self, Step};
use linerate_agent::cluster::{ClusterError, Kind, Membership, join as joining, renewal, utc};
use linerate_agent::config::Config;
use linerate_api::{AgentStatus, Client, ClientError, SecurityState};

use super::progress::with_progress;
use crate::context::Context;
use crate::documents::{
    AuthorityRotated, CertificateShown, HostCertificate, HostRevoked, Member, NewTokenLine, TokenListed,
    TokenRevoked, TokenState, TrustedAuthority,
};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{
    CertificateCommand, ClusterCommand, ConfigFlag, HostCommand, InitFlags, JoinFlags, RotateFlags,
    TokenCommand, TokenFlags,
};
use crate::render::cluster as render;

/// A token has about 100 bytes.
const TOKEN_BYTES_MAX: u64 = 1024;

/// Makes a cluster's authority and this host's identity (`linerate cluster`).
pub async fn run(command: &ClusterCommand, context: &Context) -> Result<Exit, Failure> {
    let InitFlags { name, host, config } = match command {
        ClusterCommand::Init(flags) => flags,
        ClusterCommand::Rotate(flags) => return rotate(flags, context).await,
    };
    let here = Here::find(config, context).await?;
    let made = operations::init(&here.config, name.as_deref(), host.as_deref()).map_err(failed)?;
    let exit = here.tell_membership(&made, context).await?;
    context.people(|| "next, for each other host: linerate token create\n".into())?;
    Ok(exit)
}

/// The next step of a change of the authority.
async fn rotate(flags: &RotateFlags, context: &Context) -> Result<Exit, Failure> {
    let here = Here::find(&flags.config, context).await?;
    let done = rotation::rotate(&here.config, flags.leave_behind).map_err(failed)?;
    let looked = here.look().await;
    let (step, next) = match done.step {
        Step::Begun => (
            "begun",
            "each host trusts both authorities within five minutes; then run `linerate cluster rotate` again",
        ),
        Step::Switched => (
            "switched",
            "each host gets a certificate of the next authority within five minutes; then run it again",
        ),
        Step::Finished => (
            "finished",
            "the former authority is no longer trusted; tokens that it made cannot be used, make new ones",
        ),
    };
    let left_behind: Vec<String> = done.left_behind.iter().map(ToString::to_string).collect();
    let document = AuthorityRotated {
        step,
        old: done.old.to_string(),
        new: done.new.to_string(),
        left_behind: left_behind.clone(),
    };
    context.done(&document, || {
        let mut text = format!("{step}: {next}\n");
        if !left_behind.is_empty() {
            text += &format!(
                "not waited for: {}. They must join again: `linerate token create --host NAME` here, `linerate join \
                 --replace` there\n",
                left_behind.join(", ")
            );
        }
        if matches!(looked, Looked::NoAgent) {
            text += "no agent runs here: hosts follow once it does\n";
        }
        text
    })?;
    looked.demand("the change of the authority is written", here.config.ignores_identity())
}

/// Makes, lists and revokes tokens (`linerate token`).
pub async fn token(command: &TokenCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        TokenCommand::Create(flags) => create_token(flags, context).await,
        TokenCommand::List(config) => {
            let here = Here::find(config, context).await?;
            let listed = operations::tokens(&here.config).map_err(failed)?;
            let now = now_unix_s();
            let tokens: Vec<TokenListed> = listed
                .into_iter()
                .map(|one| TokenListed {
                    id: one.id.to_string(),
                    host: one.host.map(|host| host.to_string()),
                    expires_unix_ms: one.expires.as_secs().saturating_mul(1000),
                    state: match one.used {
                        true => TokenState::Used,
                        false if now >= one.expires.as_secs() => TokenState::Expired,
                        false => TokenState::Open,
                    },
                })
                .collect();
            context.answer(&tokens, || render::tokens(&tokens, context.out.paint))?;
            Ok(Exit::Ok)
        }
        TokenCommand::Revoke { id, config } => {
            let here = Here::find(config, context).await?;
            operations::revoke_token(&here.config, id).map_err(failed)?;
            // The agent looks at the file of tokens for each host that joins.
            here.look().await;
            context.done(&TokenRevoked { id, revoked: true }, || {
                format!("token {id} cannot be used any more\n")
            })?;
            Ok(Exit::Ok)
        }
    }
}

async fn create_token(flags: &TokenFlags, context: &Context) -> Result<Exit, Failure> {
    let here = Here::find(&flags.config, context).await?;
    let ttl = Duration::from_secs(flags.ttl.into());
    let made = operations::create_token(&here.config, ttl, flags.host.as_deref()).map_err(failed)?;
    let (command, addresses) = line(&here.config, &made);
    let looked = here.look().await;
    let cannot_join = match &looked {
        Looked::NoAgent => Some("no agent runs here: hosts can join once it does".to_owned()),
        Looked::Lost(error) => {
            Some(format!("it is not known whether the agent lets hosts join now: {error}"))
        }
        Looked::Agent(status) if status.join_listen.is_empty() => {
            let why = status.security_advice.clone().unwrap_or_default();
            Some(format!("the agent does not let hosts join now: {why}"))
        }
        Looked::Agent(_) => None,
    };
    let document = NewTokenLine {
        command: &command,
        token: &made.line,
        id: made.id.to_string(),
        host: made.host.as_ref().map(ToString::to_string),
        addresses,
        expires_unix_ms: made.expires.as_secs().saturating_mul(1000),
        can_join: cannot_join.is_none(),
        cannot_join,
    };
    // Nothing but the line is on standard output: it is copied, also by programs.
    context.done(&document, || format!("{command}\n"))?;
    if !context.json {
        let who = made.host.as_ref().map_or_else(|| "any host".to_owned(), ToString::to_string);
        context.print_line(&format!("for {who}, once, until {}", utc(&made.expires)));
        document.cannot_join.iter().for_each(|why| context.print_line(why));
    }
    Ok(Exit::Ok)
}

/// The command for the other host, and all addresses that it may have.
fn line(config: &Config, made: &NewToken) -> (String, Vec<String>) {
    let mut addresses: Vec<String> = made.addresses.iter().map(ToString::to_string).collect();
    if addresses.is_empty() {
        addresses.push(config.name.clone());
    }
    let first = addresses.first().map(String::as_str).unwrap_or_default();
    (format!("linerate join {first} {}", made.line), addresses)
}

/// Joins this host to a token's cluster (`linerate join`).
pub async fn join(flags: &JoinFlags, context: &Context) -> Result<Exit, Failure> {
    let here = Here::find(&flags.config, context).await?;
    let token = match flags.token.as_str() {
        "-" => read_token()?,
        token => token.to_owned(),
    };
    if flags.replace && !joining::keeps_name(&here.config, &token, flags.host.as_deref()) {
        here.refuse_during_migrations().await?;
    }
    let (config, address, host, replace) =
        (here.config.clone(), flags.address.clone(), flags.host.clone(), flags.replace);
    let join = move || joining::join(&config, &address, &token, host.as_deref(), replace).map_err(failed);
    let joined = asked(format!("asking {}", flags.address), context, join).await?;
    here.tell_membership(&joined, context).await
}

/// Asks another host in a thread of its own, so that a terminal shows for how long.
async fn asked(
    what: String,
    context: &Context,
    ask: impl FnOnce() -> Result<Membership, Failure> + Send + 'static,
) -> Result<Membership, Failure> {
    let joined = with_progress(what, context.err, tokio::task::spawn_blocking(ask)).await;
    joined.map_err(|error| Failure::new(Exit::Failed, format!("a defect in linerate: {error}"), ""))?
}

/// One line: who pastes it does not have to end the input.
fn read_token() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(TOKEN_BYTES_MAX).read_line(&mut text);
    read.map_err(|error| Failure::new(Exit::Usage, format!("the token cannot be read: {error}"), ""))?;
    Ok(text)
}

/// Lists and revokes hosts of the cluster (`linerate host`).
pub async fn host(command: &HostCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        HostCommand::List(config) => {
            let here = Here::find(config, context).await?;
            let hosts = operations::hosts(&here.config).map_err(failed)?;
            let hosts: Vec<HostCertificate> = hosts
                .into_iter()
                .map(|one| HostCertificate {
                    host: one.host.to_string(),
                    serial: one.serial.to_string(),
                    ends_unix_ms: one.not_after.as_secs().saturating_mul(1000),
                })
                .collect();
            context.answer(&hosts, || render::hosts(&hosts, context.out.paint))?;
        }
        HostCommand::Revoke { name, config } => {
            let here = Here::find(config, context).await?;
            let list_number = operations::revoke_host(&here.config, name).map_err(failed)?;
            return here.tell_revocation(name, list_number, context).await;
        }
    }
    Ok(Exit::Ok)
}

/// Shows and renews this host's certificate (`linerate certificate`).
pub async fn certificate(command: &CertificateCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        CertificateCommand::Show(config) => {
            let here = Here::find(config, context).await?;
            let shown = operations::show(&here.config).map_err(failed)?;
            let authorities = shown.authorities.into_iter();
            let document = CertificateShown {
                name: shown.membership.name.to_string(),
                cluster: shown.membership.name.cluster.to_string(),
                host: shown.membership.name.host.to_string(),
                serial: shown.serial,
                ends_unix_ms: shown.membership.not_after.as_secs().saturating_mul(1000),
                renewal_from_unix_ms: shown.renewal_from.as_secs().saturating_mul(1000),
                problem: shown.problem,
                has_authority: shown.is_authority,
                authorities: authorities
                    .map(|(id, list_number)| TrustedAuthority { id, list_number })
                    .collect(),
            };
            let (ends, from) = (utc(&shown.membership.not_after), utc(&shown.renewal_from));
            context.answer(&document, || render::certificate(&document, &ends, &from, context.out.paint))?;
            if let Some(problem) = &document.problem {
                let text = format!("other hosts would refuse this host's certificate: {problem}");
                let hint =
                    "`linerate certificate renew` while it is valid; otherwise join again with a token";
                return Err(Failure::new(Exit::Failed, text, hint));
            }
        }
        CertificateCommand::Renew { from, config } => {
            let here = Here::find(config, context).await?;
            let (config, from) = (here.config.clone(), from.clone());
            let renew = move || renewal::renew(&config, from.as_deref()).map_err(failed);
            let renewed = asked("asking the authority's host".to_owned(), context, renew).await?;
            return here.tell_membership(&renewed, context).await;
        }
    }
    Ok(Exit::Ok)
}

/// What this host's agent has made of what was written.
enum Looked {
    /// Its state behind that.
    Agent(Box<AgentStatus>),
    NoAgent,
    /// One may run, and has not said.
    Lost(ClientError),
}

impl Looked {
    fn status(&self) -> Option<&AgentStatus> {
        if let Looked::Agent(status) = self { Some(status) } else { None }
    }

    /// Why the files are not in force, although an agent runs or may run.
    fn not_taken_up(&self) -> Option<String> {
        match self {
            Looked::Agent(status) => status
                .identity_not_taken_up
                .as_ref()
                .map(|why| format!("this host's agent does not use the new files: {why}")),
            Looked::Lost(error) => {
                Some(format!("it is not known whether this host's agent has taken it up: {error}"))
            }
            Looked::NoAgent => None,
        }
    }

    /// Why the agent does nothing with such files, whatever they have. `ignored`: what its configuration has instead.
    fn unused(&self, ignored: Option<&str>) -> Option<String> {
        let plain = || self.status().is_some_and(|status| status.security == SecurityState::Insecure);
        match ignored {
            Some(why) => Some(format!("its configuration has {why}")),
            None if plain() => Some("it was started in plain text".into()),
            None => None,
        }
    }

    /// The end of a command that has written `what`, which is of no use unless the agent goes by it.
    fn demand(&self, what: &str, ignored: Option<&str>) -> Result<Exit, Failure> {
        if let Some(why) = self.unused(ignored) {
            let text = format!("{what}, but this host's agent does not go by it: {why}");
            return Err(Failure::new(Exit::Failed, text, GO_BY));
        }
        let Some(why) = self.not_taken_up() else { return Ok(Exit::Ok) };
        Err(Failure::new(Exit::Failed, format!("{what}, but {why}"), TAKE_UP))
    }
}

const GO_BY: &str = "take that out of the agent's configuration, and restart it; of hosts with certificates of your own, \
                     `revocations` in [certificate] names those that are refused";

const TAKE_UP: &str =
    "see `linerate status` and the agent's log; a restart of the agent takes up what was written";

/// This host's files, and its agent if one runs.
struct Here {
    config: Config,
    client: Client,
}

impl Here {
    /// The configuration, which must be that of the agent that answers.
    async fn find(flag: &ConfigFlag, context: &Context) -> Result<Here, Failure> {
        let config = match &flag.config {
            Some(path) => Config::read(path),
            None => Config::read_or_default(linerate_agent::DEFAULT_CONFIG.as_ref()),
        };
        let config = config.map_err(|error| {
            let error = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), |why| format!("{error}: {why}"));
            Failure::new(Exit::Failed, error, "")
        })?;
        let client = context.client_of(&config.socket);
        let folder = config.identity_folder().display().to_string();
        if let Ok(status) = client.status().await
            && status.identity_dir != folder
        {
            let text = format!(
                "the agent at {} has its identity in {}, and the configuration says {folder}; nothing was done",
                client.socket().display(),
                status.identity_dir,
            );
            return Err(Failure::new(
                Exit::Refused,
                text,
                "name the agent's own configuration with --config",
            ));
        }
        Ok(Here { config, client })
    }

    /// Other hosts know this one by its present name for as long as a session is not over. Guests that only run here
    /// are not touched. An agent that does not say is not taken for one without sessions.
    async fn refuse_during_migrations(&self) -> Result<(), Failure> {
        let status = match self.client.status().await {
            Ok(status) => status,
            Err(ClientError::SocketAbsent { .. } | ClientError::NobodyListens { .. }) => return Ok(()),
            Err(error) => {
                let hint = error.hint();
                let text = format!("it is not known whether migrations are over: {error}; nothing was done");
                return Err(Failure::new(Exit::Failed, text, hint));
            }
        };
        let open = status.migrations + status.unfinished + status.in_doubt;
        if open == 0 {
            return Ok(());
        }
        let text = format!(
            "{open} migrations are not over, and the other hosts know this one by its present name; nothing was done"
        );
        Err(Failure::new(
            Exit::Refused,
            text,
            "wait for their end, or decide them: `linerate migration list`, `linerate resolve`",
        ))
    }

    /// Has the agent take up what was written.
    async fn look(&self) -> Looked {
        match self.client.look_at_identity().await {
            Ok(status) => Looked::Agent(Box::new(status)),
            Err(ClientError::SocketAbsent { .. } | ClientError::NobodyListens { .. }) => Looked::NoAgent,
            Err(error) => Looked::Lost(error),
        }
    }

    async fn tell_revocation(
        &self,
        host: &str,
        list_number: u64,
        context: &Context,
    ) -> Result<Exit, Failure> {
        let looked = self.look().await;
        let revoked = format!("{host} is revoked (list {list_number})");
        let demanded = looked.demand(&revoked, self.config.ignores_identity());
        let in_force = demanded.is_ok() && looked.status().is_some();
        let output = context.programs(&HostRevoked { host, revoked: true, list_number, in_force });
        Failure::of_ended(demanded, output, Exit::Failed, context)?;
        let text = || match in_force {
            true => format!("{revoked}: this host refuses it now, the others within five minutes\n"),
            false => format!(
                "{revoked}: no agent runs here. Once it does, this host refuses it, others within five minutes\n"
            ),
        };
        context.people(text).map_err(Failure::after_it_was_done)?;
        Ok(Exit::Ok)
    }

    async fn tell_membership(&self, membership: &Membership, context: &Context) -> Result<Exit, Failure> {
        let looked = self.look().await;
        let status = looked.status();
        let name = &membership.name;
        let member = Member {
            cluster: name.cluster.to_string(),
            host: name.host.to_string(),
            authority: membership.authority.map(|id| id.to_string()),
            ends_unix_ms: membership.not_after.as_secs().saturating_mul(1000),
            in_force: status.is_some_and(|status| {
                status.identity.as_ref().is_some_and(|own| {
                    own.cluster == name.cluster.as_str()
                        && own.host == name.host.as_str()
                        && own.ends_unix_ms == membership.not_after.as_secs().saturating_mul(1000)
                })
            }),
        };
        let until = utc(&membership.not_after);
        let is = format!("this host is {} in cluster {}, until {until}", name.host, name.cluster);
        context.programs(&member).map_err(Failure::after_it_was_done)?;
        let agent = match (&looked, self.config.ignores_identity()) {
            (_, Some(why)) => format!("the agent does not use it: its configuration has {why}"),
            (Looked::NoAgent, None) => "no agent runs here; it takes up the identity when it starts".into(),
            (Looked::Agent(_), None) if member.in_force => "the agent has taken it up".into(),
            (Looked::Agent(status), None) => {
                let why = status.identity_not_taken_up.clone().or(status.security_advice.clone());
                let text =
                    format!("{is}, but the agent does not use the new files: {}", why.unwrap_or_default());
                return Err(Failure::new(Exit::Failed, text, TAKE_UP));
            }
            (Looked::Lost(_), None) => return looked.demand(&is, None),
        };
        context.people(|| format!("{is}\n{agent}\n")).map_err(Failure::after_it_was_done)?;
        Ok(Exit::Ok)
    }
}

fn now_unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn failed(error: ClusterError) -> Failure {
    let exit = match error.kind() {
        Kind::Usage => Exit::Usage,
        Kind::Refused => Exit::Refused,
        Kind::Unreachable => Exit::Unreachable,
        Kind::Failed => Exit::Failed,
    };
    Failure::new(exit, error.to_string(), error.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an agent says of itself.
    fn looked(security: &str, not_taken_up: Option<&str>) -> Looked {
        let status = serde_json::json!({
            "name": "alpha", "version": "1", "uptime_s": 1, "listen": [], "guests": 0, "migrations": 0,
            "in_doubt": 0, "protocol_versions": [], "kernel_features": [], "security": security,
            "identity_not_taken_up": not_taken_up,
        });
        Looked::Agent(Box::new(serde_json::from_value(status).unwrap()))
    }

    fn demanded(looked: &Looked, ignored: Option<&str>) -> Result<Exit, (Exit, String)> {
        let end = looked.demand("b is revoked", ignored);
        end.map_err(|failure| (failure.exit, failure.message().to_owned()))
    }

    #[test]
    fn what_the_agent_has_not_taken_up_is_a_failure() {
        let status = |not_taken_up: Option<&str>| looked("tls", not_taken_up);
        let end = |looked: Looked| demanded(&looked, None);
        assert_eq!(end(status(None)), Ok(Exit::Ok));
        assert_eq!(end(Looked::NoAgent), Ok(Exit::Ok), "the next one takes it up");
        let (exit, text) = end(status(Some("trust.pem is damaged"))).unwrap_err();
        assert!(exit == Exit::Failed && text.contains("does not use the new files: trust.pem"), "{text}");
        let lost = Looked::Lost(ClientError::Silent { limit: Duration::from_secs(30) });
        let (exit, text) = end(lost).unwrap_err();
        assert!(exit == Exit::Failed && text.contains("it is not known"), "{text}");
    }

    /// It uses no identity: it refuses nobody for what is in one.
    #[test]
    fn a_host_that_no_agent_refuses_is_not_revoked_with_success() {
        let insecure = Some("security = \"insecure\"");
        let said = |end: Result<Exit, (Exit, String)>| {
            let (exit, text) = end.unwrap_err();
            assert_eq!(exit, Exit::Failed);
            text
        };
        for looked in [looked("insecure", None), Looked::NoAgent] {
            let text = said(demanded(&looked, insecure));
            assert!(
                text.ends_with("does not go by it: its configuration has security = \"insecure\""),
                "{text}"
            );
        }
        // The configuration was changed since it was started.
        let text = said(demanded(&looked("insecure", None), None));
        assert!(text.contains("started in plain text"), "{text}");
        assert_eq!(demanded(&looked("tls", None), None), Ok(Exit::Ok));
    }
}

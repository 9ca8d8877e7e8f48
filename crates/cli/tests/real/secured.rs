//! Hosts whose agents prove who they are.

use linerate_lab::trust::Cluster;
use linerate_lab::{Agent, AgentOptions, GuestParameters, GuestSpec, Lab, QemuVersion};

use super::{Stage, hosts_of, options};

impl Stage {
    /// Two hosts of one cluster, whose agents speak TLS.
    pub fn secured(links_mbps: &[u64], parameters: GuestParameters) -> Stage {
        let join = |lab: &Lab| {
            let mut cluster = Cluster::new(&lab.directory().join("authority")).unwrap();
            lab.hosts().iter().for_each(|host| cluster.join(host).unwrap());
            String::new()
        };
        Stage::of(hosts_of(Lab::builder().hosts(2), links_mbps, join), |_| {
            GuestSpec::bare("g", parameters).qemu(QemuVersion::Ten)
        })
    }

    /// Two hosts whose agents have more configuration.
    pub fn configured(links_mbps: &[u64], parameters: GuestParameters, configuration: &str) -> Stage {
        let hosts = hosts_of(Lab::builder().hosts(2), links_mbps, |_| configuration.to_owned());
        Stage::of(hosts, |_| GuestSpec::bare("g", parameters).qemu(QemuVersion::Ten))
    }

    /// The agent of the first or the second host, wherever the guest is.
    pub fn agent_of(&self, host: usize) -> &Agent {
        &self.agents[host]
    }

    /// Starts a host's agent again with more environment.
    #[allow(dead_code, reason = "not every test file needs it")]
    pub fn restart_agent_in(
        &mut self,
        place: usize,
        configuration: &str,
        environment: Vec<(String, String)>,
    ) {
        let agent = &mut self.agents[place];
        agent.stop().unwrap();
        let plain = options(configuration);
        let environment = [plain.environment.clone(), environment].concat();
        let options = AgentOptions { environment, ..plain };
        *agent = Agent::start(&self.lab.hosts()[place].clone(), options).unwrap();
    }

    /// Starts both agents again, with what the hosts have now, and more configuration: the source's, the destination's.
    pub fn restart_agents_with(&mut self, configuration: [&str; 2]) {
        for (place, agent) in self.agents.iter_mut().enumerate() {
            agent.stop().unwrap();
            let more = configuration[usize::from(place != self.source)];
            *agent = Agent::start(&self.lab.hosts()[place].clone(), options(more)).unwrap();
        }
    }
}

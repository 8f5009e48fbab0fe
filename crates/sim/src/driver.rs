//! The driver around the real controller: passes on what its links bring, and carries out the
//! outputs.

use broadleaf_core::{Input, Nanos, Output};
use broadleaf_proto::control::{EngineInfo, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId};
use broadleaf_proto::relay::RelayCommand;
use broadleaf_proto::task::{AssignRecord, FunctionRecord};

use crate::Mutation;
use crate::cluster::{Cluster, EngineMessage, Event, Link, NodeEvent};
use crate::peers::engine::Slot;
use crate::work::job::{Preparation, index_of};

const MS: Nanos = 1_000_000;

impl Cluster {
    pub(crate) fn node(&mut self, event: NodeEvent) -> Result<(), String> {
        match event {
            NodeEvent::Input(input) => {
                if let Input::HostUp { host, .. } = input {
                    self.on_link_up(host);
                }
                if let Input::HostDown { host } = input {
                    if !self.on_link_down(host) {
                        return Ok(());
                    }
                    self.drop_values(host);
                }
                self.feed(input)?;
            }
            NodeEvent::FromForkServer(event) => {
                self.own_host_reports(EngineReport::ForkServer(event))?;
            }
            NodeEvent::Link(input) => self.on_link_input(input)?,
            NodeEvent::FromRelay(host, input) => {
                self.on_host_heard(host)?;
                if let Input::Measured { .. } = input
                    && let Some(relay) = self.hosts.get_mut(&host)
                {
                    relay.owes_figures = false;
                }
                let up = match &input {
                    Input::Report {
                        report: EngineReport::Up(info),
                        ..
                    } => Some(info.engine),
                    _ => None,
                };
                // The offers of an engine that has reconnected start again from 0.
                let before = up.filter(|e| self.controller.host_of(*e) == host);
                let before = before.and_then(|e| Some((e, self.sent_offers.remove(&e)?)));
                let expelled = self.expelled;
                match input {
                    Input::Report {
                        report: report @ EngineReport::ForkServer(_),
                        ..
                    } if self.plan.mutation == Mutation::BelievesRelays => {
                        self.own_host_reports(report)?;
                    }
                    input => self.relay_was_heard(host, input)?,
                }
                if let Some((engine, sent)) = before
                    && self.expelled > expelled
                {
                    self.sent_offers.insert(engine, sent); // This was a lie.
                }
            }
            NodeEvent::ForkServerClosed => self.feed(Input::ForkServerDown)?,
            NodeEvent::Hello(pid) => self.hello(pid)?,
            NodeEvent::FromEngine(pid, input) => {
                let current = self.processes.get(&pid).map(|p| p.engine);
                if current.is_some_and(|e| self.links.get(&e) == Some(&pid)) {
                    self.feed(input)?;
                }
            }
            NodeEvent::Answer(pid) => self.answer(pid)?,
            NodeEvent::EngineClosed(pid) => self.engine_closed(pid)?,
            NodeEvent::Schedule => {
                self.schedule_pending = false;
                self.controller.schedule(self.now, &mut self.outputs);
                if self.n_handled.is_multiple_of(self.plan.check_every) {
                    let waits = self.controller.check_waits(self.now);
                    waits.map_err(|v| v.to_string())?;
                }
                self.carry_out()?;
            }
            NodeEvent::Deadline => {
                self.deadline_pending = None;
                self.controller.on_deadline(self.now, &mut self.outputs);
                self.carry_out()?;
                self.want_schedule();
            }
        }
        self.n_handled += 1;
        if self.n_handled.is_multiple_of(self.plan.check_every) {
            self.controller.check().map_err(|v| v.to_string())?;
            self.check_values()?;
        }
        if let Some(at) = self.controller.next_deadline()
            && self.deadline_pending.is_none_or(|pending| at < pending)
        {
            self.deadline_pending = Some(at);
            let delay = at.saturating_sub(self.now);
            self.after(delay, Event::Node(NodeEvent::Deadline));
        }
        Ok(())
    }

    fn own_host_reports(&mut self, report: EngineReport) -> Result<(), String> {
        let host = HostId::CONTROLLER;
        self.feed(Input::Report { host, report })
    }

    pub(crate) fn feed(&mut self, input: Input) -> Result<(), String> {
        self.known_engines.on_input(&input, &self.controller);
        self.controller.on_input(self.now, input, &mut self.outputs);
        self.carry_out()?;
        self.want_schedule();
        Ok(())
    }

    /// The end of a batch: at once, or after more inputs.
    pub(crate) fn want_schedule(&mut self) {
        if !self.schedule_pending {
            self.schedule_pending = true;
            let delay = if self.random.chance(50) {
                0
            } else {
                self.random.below(MS)
            };
            self.after(delay, Event::Node(NodeEvent::Schedule));
        }
    }

    pub(crate) fn hello(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        if !process.alive {
            return Ok(());
        }
        if !self.controller.expects(engine) {
            self.end_process(pid, Some(1), None);
            return Ok(());
        }
        process.linked = true;
        self.links.insert(engine, pid);
        let info = EngineInfo {
            engine,
            uuid: format!("{pid:032x}"),
            pid,
            host: "simulated".into(),
        };
        self.own_host_reports(EngineReport::Up(info))
    }

    pub(crate) fn answer(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        match process.answers.pop_front() {
            Some((key, won)) => self.own_host_reports(EngineReport::Revoked { engine, key, won }),
            None => Ok(()),
        }
    }

    pub(crate) fn engine_closed(&mut self, pid: u32) -> Result<(), String> {
        let n_answers = self.processes.get(&pid).map_or(0, |p| p.answers.len());
        for _ in 0..n_answers {
            self.answer(pid)?;
        }
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        // Offers are taken back before they are reported, so that a process that is still alive
        // cannot claim them.
        let mut unclaimed_offers = process.unclaimed();
        for offer in &unclaimed_offers {
            process.revoke(*offer);
        }
        let next_offer = process.next_on_board();
        if self.links.get(&engine) != Some(&pid) {
            return Ok(());
        }
        self.links.remove(&engine);
        if self.plan.mutation == Mutation::AllUnclaimed {
            unclaimed_offers = process.board.keys().copied().collect();
        }
        self.own_host_reports(EngineReport::Down {
            engine,
            unclaimed_offers,
            next_offer,
        })
    }

    pub(crate) fn carry_out(&mut self) -> Result<(), String> {
        self.forget_functions();
        for output in std::mem::take(&mut self.outputs) {
            self.trace.note(self.now, &output);
            self.known_engines.on_output(&output, &self.controller)?;
            match output {
                Output::Result { client, .. }
                | Output::Refused { client, .. }
                | Output::Coalesced { client, .. }
                | Output::ClientOutput { client, .. }
                | Output::Event { client, .. }
                | Output::Reply { client, .. } => {
                    self.send(Link::ToClient(client), Event::Client(client, output));
                }
                Output::Function { engine, record } => self.send_function(engine, record)?,
                Output::Assign { engine, record, .. } => self.assign(engine, record)?,
                Output::Order(order) => match self.controller.host_of(order.engine()) {
                    HostId::CONTROLLER => self.carry_out_order(order)?,
                    host => self.command(host, RelayCommand::Order(order)),
                },
                Output::StopForkServer => self.tell_fork_server(Event::ForkServerStops),
                Output::Measure { host } => self.ask_for_figures(host)?,
                Output::Expel { host } => self.expel(host),
                Output::Release { host } => self.release_host(host),
                Output::Note(_) => {} // There is no later controller.
                Output::Finished => self.finished = true,
            }
        }
        Ok(())
    }

    fn send_function(&mut self, engine: EngineId, record: FunctionRecord) -> Result<(), String> {
        let host = self.controller.host_of(engine);
        if host != HostId::CONTROLLER {
            self.give_function(host, engine, record);
            return Ok(());
        }
        let is_preparation = Preparation::of_body(index_of(&record.body)).is_some();
        if self.plan.mutation == Mutation::LosesPreparations
            && is_preparation
            && self.random.chance(20)
        {
            return Ok(());
        }
        self.tell_engine(engine, EngineMessage::Function(record))
    }

    fn assign(&mut self, engine: EngineId, record: AssignRecord) -> Result<(), String> {
        self.check_offer(engine, &record)?;
        let host = self.controller.host_of(engine);
        if host != HostId::CONTROLLER {
            return self.assign_there(host, engine, record);
        }
        self.note_offered(engine, &record);
        let pid = self.link_to(engine)?;
        let process = self.processes.get_mut(&pid);
        let before = process.and_then(|p| p.board.insert(record.offer, Slot::Offered));
        if before.is_some() {
            return Err(format!("offer {} was made twice", record.offer));
        }
        self.tell_engine(engine, EngineMessage::Assign(record))
    }

    /// Carries out an order for an engine of the controller's host.
    fn carry_out_order(&mut self, order: EngineOrder) -> Result<(), String> {
        match order {
            EngineOrder::Stop { engine } => {
                if self.links.contains_key(&engine) {
                    self.tell_engine(engine, EngineMessage::Stop)?;
                }
            }
            EngineOrder::Revoke { engine, key, offer } => {
                let pid = self.link_to(engine)?;
                let process = self.processes.get_mut(&pid);
                let won = process.is_some_and(|p| p.revoke(offer))
                    || self.plan.mutation == Mutation::RevokeAlwaysWon;
                // The answer comes now or later, but before the end of the link is reported.
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.answers.push_back((key, won));
                }
                let delay = self.random.time(40 * MS);
                self.after(delay, Event::Node(NodeEvent::Answer(pid)));
            }
            EngineOrder::Interrupt { engine, offer, .. } => {
                self.interrupt(HostId::CONTROLLER, engine, offer);
            }
            EngineOrder::Kill {
                engine,
                pid,
                signal,
            } => {
                if !self.ends_guest(pid) {
                    self.kill(HostId::CONTROLLER, engine, pid, signal)?;
                }
            }
            EngineOrder::ForkServer(ForkServerOrder::Spawn { engine }) => {
                self.tell_fork_server(|number| Event::Spawn(number, engine));
            }
            EngineOrder::ForkServer(ForkServerOrder::Seat {
                engine,
                world,
                rank,
            }) => self.tell_fork_server(|number| Event::Seat(number, engine, world, rank)),
            EngineOrder::ForkServer(ForkServerOrder::ReadWritten(read)) => {
                self.tell_fork_server(|number| Event::ReadWritten(number, read.reading));
            }
        }
        Ok(())
    }

    /// Signals a process, which must be the engine's own.
    pub(crate) fn kill(
        &mut self,
        host: HostId,
        engine: EngineId,
        pid: u32,
        signal: i32,
    ) -> Result<(), String> {
        let process = self.processes.get(&pid);
        if !process.is_some_and(|p| p.host == host && p.engine == engine) {
            return Err(format!(
                "{pid} is not the process of {engine:?} on {host:?}"
            ));
        }
        self.end_process(pid, None, Some(signal));
        Ok(())
    }

    fn tell_fork_server(&mut self, told: impl FnOnce(u32) -> Event) {
        if let Some(number) = self.fork_server {
            self.send(Link::ToForkServer(number), told(number));
        }
    }

    pub(crate) fn expel(&mut self, host: HostId) {
        self.expelled += u32::from(!self.links_to_hosts.is_given_up(host));
        self.close_host(host);
    }

    pub(crate) fn link_to(&self, engine: EngineId) -> Result<u32, String> {
        let link = self.links.get(&engine).copied();
        link.ok_or_else(|| format!("engine {} has no link", engine.0))
    }

    pub(crate) fn tell_engine(
        &mut self,
        engine: EngineId,
        message: EngineMessage,
    ) -> Result<(), String> {
        let pid = self.link_to(engine)?;
        self.send(Link::ToEngine(pid), Event::Engine(pid, message));
        Ok(())
    }
}

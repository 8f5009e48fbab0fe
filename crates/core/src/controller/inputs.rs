//! The entry points: an input, or a deadline that has passed.

use broadleaf_proto::ids::HostId;

use super::Controller;
use crate::engines::host_table::NewHost;
use crate::timers::Timer;
use crate::{Input, Nanos, Output};

impl Controller {
    /// Takes one input. The next [`Self::schedule`] places the tasks that became ready.
    pub fn on_input(&mut self, now: Nanos, input: Input, out: &mut Vec<Output>) {
        if self.supervisor.boot() {
            self.boot(now);
        }
        match input {
            Input::Submit { client, record } => self.on_submit(now, client, record, None, out),
            Input::SubmitIncomplete {
                client,
                record,
                reason,
            } => self.on_submit(now, client, record, Some(reason), out),
            Input::Done {
                host,
                engine,
                record,
                copy,
            } => {
                if host == HostId::CONTROLLER || self.may_report(host, engine, out) {
                    self.on_done(now, engine, record, copy, out);
                }
            }
            Input::Output {
                host,
                engine,
                record,
            } => {
                if host == HostId::CONTROLLER || self.may_report(host, engine, out) {
                    self.on_output(engine, record, out);
                }
            }
            Input::Report { host, report } => self.on_report(now, host, report, out),
            Input::ClientUp { client, name } => self.on_client_up(client, name, out),
            Input::ClientDown { client } => self.on_client_down(client, out),
            Input::Function { client, record } => self.on_function(client, &record),
            Input::Options { client, define } => self.on_options(client, define),
            Input::ClientCongested { client, congested } => self.on_congested(client, congested),
            Input::Request {
                client,
                number,
                request,
            } => self.on_request(now, client, number, request, out),
            Input::Observed => self.observers.observe(self.hosts.up(), out),
            Input::OwnerDown => self.shutdown(now, out),
            Input::HostUp {
                host,
                name,
                n_engines,
                n_cores,
                ends_in_ns,
            } => {
                let new = NewHost {
                    name,
                    n_engines,
                    n_cores,
                    ends_in_ns,
                };
                self.on_host_up(now, host, new, out);
            }
            Input::Restored { members } => self.on_restored(now, members),
            Input::HostRejoined { host, holdings } => {
                if self.knows(host) {
                    self.on_host_rejoined(now, host, &holdings, out);
                }
            }
            Input::HostAway { host } => self.on_host_away(host, true),
            Input::HostBack { host } => self.on_host_away(host, false),
            Input::HostDown { host } => self.on_host_down(now, host, out),
            Input::HostEnds { host, ends_in_ns } => {
                if self.knows(host) {
                    self.on_notice(now, host, ends_in_ns, out);
                }
            }
            Input::Measured { host, counts } => {
                if self.knows(host) {
                    self.observers.on_measured(now, host, counts);
                }
            }
            Input::ForkServerUp => self.on_fork_server_up(out),
            Input::ForkServerDown => self.on_fork_server_down(now, out),
        }
        self.settle(out);
        self.remove_departed();
    }

    /// When [`Self::on_deadline`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next()
    }

    /// Handles everything that is due by `now`; call [`Self::schedule`] afterwards.
    pub fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.timers.end_look(now);
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Task(key) => self.on_task_timer(now, key, out),
                Timer::Engine(engine) => self.on_engine_timer(now, engine, out),
                Timer::Host(host) => self.on_host_timer(now, host, out),
                Timer::Shutdown => self.finish(out),
            }
            self.settle(out);
            self.remove_departed();
        }
    }
}

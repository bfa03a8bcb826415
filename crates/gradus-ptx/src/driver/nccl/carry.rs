//! Calls of several ranks, as the order of their streams reaches them.

use super::{INVALID_USAGE, Key, Launch, Part, What, reduce};
use crate::driver::machine::Driver;

impl Driver {
    /// A launch has been reached in the order of its stream: whether it is done. One whose communicator is gone is.
    pub(in crate::driver) fn advance(&mut self, launch: &Launch) -> bool {
        if !self.nccl.comms.contains_key(&launch.comm) {
            return true;
        }
        if launch.is_endless {
            return false;
        }
        let size = self.nccl.cliques[launch.clique].members.len();
        // The two sides of a message are 0 and 1, also if a rank sends to itself.
        let sides = |part: &Part| match part.key {
            Key::Collective(_) => (size, launch.rank),
            Key::Message { .. } => (2, usize::from(part.from == 0)),
        };
        let mut is_done = true;
        for part in &launch.parts {
            let (count, side) = sides(part);
            let call = self.nccl.cliques[launch.clique].calls.entry(part.key).or_default();
            if call.is_done {
                continue;
            }
            call.parts.insert(side, *part);
            if call.parts.len() < count {
                is_done = false;
                continue;
            }
            call.is_done = true;
            let parts: Vec<Part> = std::mem::take(&mut call.parts).into_values().collect();
            if let Err(why) = self.carry(&parts) {
                self.spoil(launch.clique, &why);
                return false;
            }
        }
        for part in launch.parts.iter().filter(|_| is_done) {
            let calls = &mut self.nccl.cliques[launch.clique].calls;
            let seen = calls.get_mut(&part.key).map_or(0, |call| {
                call.seen += 1;
                call.seen
            });
            if seen == sides(part).0 {
                calls.remove(&part.key);
            }
        }
        is_done
    }

    /// Reports what is wrong with the calls of some ranks, which all of them find out.
    fn spoil(&mut self, clique: usize, why: &str) {
        self.counts.report(&format!("NCCL: {why}"));
        for comm in self.nccl.comms.values_mut().filter(|comm| comm.clique == clique) {
            comm.error.get_or_insert(INVALID_USAGE);
        }
    }

    /// Moves the data of a call that all ranks make. An error says what is wrong with it.
    fn carry(&mut self, parts: &[Part]) -> Result<(), String> {
        let what = parts[0].what;
        if let Some(other) = parts.iter().find(|part| part.what != what) {
            return Err(format!("ranks make different calls: {what:?} and {:?}", other.what));
        }
        let size = parts.len();
        let (given, taken) = what.bytes(size);
        let read = |driver: &Driver, part: &Part| {
            let memory = &driver.devices[part.device].memory.memory;
            let mut bytes = vec![0; given];
            memory.read(part.from, &mut bytes).map_err(|e| format!("{what:?}: {e}"))?;
            if !driver.settings.null && given > 0 && memory.is_written(part.from, given as u64) == Ok(false) {
                return Err(format!("{what:?}: some of the {given} bytes at {:#x} were never written", part.from));
            }
            Ok(bytes)
        };
        let all = |driver: &Driver| parts.iter().map(|part| read(driver, part)).collect::<Result<Vec<_>, String>>();
        let results: Vec<Vec<u8>> = match what {
            What::AllReduce { kind, reduction, .. } => {
                let sum = reduce::reduced(all(self)?, kind, reduction)?;
                vec![sum; size]
            }
            What::ReduceScatter { kind, reduction, bytes } => {
                let sum = reduce::reduced(all(self)?, kind, reduction)?;
                (0..size).map(|rank| sum[rank * bytes..(rank + 1) * bytes].to_vec()).collect()
            }
            What::AllGather { .. } => vec![all(self)?.concat(); size],
            What::Broadcast { root, .. } => vec![read(self, &parts[root])?; size],
            What::Message { .. } => vec![vec![], read(self, &parts[0])?],
        };
        for (part, bytes) in parts.iter().zip(results).filter(|(part, _)| part.to != 0) {
            debug_assert_eq!(bytes.len(), taken);
            let memory = &self.devices[part.device].memory.memory;
            memory.write(part.to, &bytes).map_err(|e| format!("{what:?}: {e}"))?;
        }
        Ok(())
    }
}

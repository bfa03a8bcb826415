//! A block: its warps take turns, and meet at barriers.

use super::race::Races;
use super::scratch::Scratch;
use super::shared::Shared;
use super::warp::{Arrival, Stop, Warp};
use super::{Context, Job, Located, Mistake};
use crate::{FaultKind, Stats};

/// How many instructions a warp executes before the others have their turn.
const QUANTUM: u64 = 4096;

/// Who has come to a barrier.
#[derive(Default)]
struct Meeting {
    /// Threads that came, with those that do not wait.
    came: u32,
    /// Warps that took part, in the order in which they came.
    warps: Vec<usize>,
    votes: u32,
    pc: u32,
}

/// Runs a block to its end.
pub(crate) fn run_block(job: &Job<'_>, block: [u32; 3], scratch: &mut Scratch) -> Result<Stats, Located> {
    let threads = job.launch.block.iter().product::<u32>();
    let count = threads.div_ceil(32) as usize;
    let mut sites = std::mem::take(&mut scratch.sites);
    sites.resize(job.code.insts.len(), 0);
    let mut context = Context {
        job,
        block,
        shared: Shared::new(&job.shared, job.limits.races),
        races: Races::new(job.limits.races, count, job.first_segment),
        sites,
        stats: Stats::default(),
    };
    let warps = (0..count as u32).map(|index| Warp::new(&context, scratch, index, threads - index * 32)).collect();
    let waiting = (0..count).map(|_| None).collect();
    let mut state = Block { warps, waiting, ended: vec![false; count], meetings: Default::default(), threads };
    match state.run(&mut context) {
        Ok(()) => {
            scratch.sites = context.sites;
            state.warps.into_iter().for_each(|warp| warp.end(scratch));
            Ok(context.stats)
        }
        Err((warp, mistake)) => {
            let thread = context.thread(warp as u32 * 32 + mistake.lane.min(31));
            Err(Located { mistake: *mistake, block, thread })
        }
    }
}

struct Block {
    warps: Vec<Warp>,
    /// For each warp, the barrier at which it waits.
    waiting: Vec<Option<Arrival>>,
    ended: Vec<bool>,
    meetings: [Meeting; 16],
    threads: u32,
}

impl Block {
    fn run(&mut self, context: &mut Context<'_>) -> Result<(), (usize, Box<Mistake>)> {
        loop {
            let mut moved = false;
            for at in 0..self.warps.len() {
                if self.ended[at] || self.waiting[at].is_some() {
                    continue;
                }
                moved = true;
                match self.warps[at].run(context, QUANTUM).map_err(|mistake| (at, mistake))? {
                    Stop::Pause => {}
                    Stop::End => self.ended[at] = true,
                    Stop::Barrier(arrival) => self.meet(context, at, arrival).map_err(|mistake| (at, mistake))?,
                }
            }
            if self.ended.iter().all(|ended| *ended) {
                return Ok(());
            }
            if !moved {
                return Err(self.blocked());
            }
        }
    }

    fn meet(&mut self, context: &mut Context<'_>, at: usize, arrival: Arrival) -> Result<(), Box<Mistake>> {
        let meeting = &mut self.meetings[arrival.id as usize];
        let whole = arrival.count.is_none();
        if whole && !meeting.warps.is_empty() && meeting.pc != arrival.pc {
            let text = format!("the warp comes to barrier {}, at which others wait at another place", arrival.id);
            let (pc, lane) = (arrival.pc, arrival.lanes.trailing_zeros());
            let kind = FaultKind::DivergentBarrier;
            return Err(Box::new(Mistake { kind, pc, lane, text, other: Some(meeting.pc) }));
        }
        meeting.pc = arrival.pc;
        meeting.warps.push(at);
        meeting.came += if whole { arrival.lanes.count_ones() } else { 32 };
        meeting.votes += arrival.votes.count_ones();
        let needed = arrival.count.unwrap_or(self.threads);
        let (id, complete) = (arrival.id as usize, meeting.came >= needed);
        if arrival.waits {
            self.waiting[at] = Some(arrival);
        }
        if complete {
            let meeting = std::mem::take(&mut self.meetings[id]);
            context.races.join(&meeting.warps);
            for warp in meeting.warps {
                // A warp that only came did not wait, or waits at another barrier by now.
                if let Some(arrival) = self.waiting[warp].take_if(|arrival| arrival.id as usize == id) {
                    self.warps[warp].reduced(&arrival, meeting.votes, meeting.came);
                }
            }
        }
        Ok(())
    }

    /// Nothing can go on: some wait at barriers to which others do not come.
    #[cold]
    fn blocked(&self) -> (usize, Box<Mistake>) {
        let first = self.waiting.iter().position(Option::is_some).unwrap_or(0);
        let Some(arrival) = &self.waiting[first] else {
            let text = "no warp can go on".into();
            let kind = FaultKind::DivergentBarrier;
            return (first, Box::new(Mistake { kind, pc: 0, lane: 0, text, other: None }));
        };
        let meeting = &self.meetings[arrival.id as usize];
        let alive: u32 = self.warps.iter().map(|warp| warp.live.count_ones()).sum();
        let elsewhere = self.waiting.iter().flatten().find(|other| other.pc != arrival.pc);
        let text = format!(
            "barrier {} waits for {} threads, of which {} came; {} threads of the block have ended",
            arrival.id,
            arrival.count.unwrap_or(self.threads),
            meeting.came,
            self.threads - alive
        );
        let (pc, lane) = (arrival.pc, arrival.lanes.trailing_zeros());
        let other = elsewhere.map(|other| other.pc);
        (first, Box::new(Mistake { kind: FaultKind::DivergentBarrier, pc, lane, text, other }))
    }
}

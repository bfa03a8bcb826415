//! Instructions that concern one lane at a time.

use super::warp::Warp;
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::{Combine, Compare, Dst, Op, Pred, Special, Src, WINDOW, Window, base};

impl Warp {
    /// Executes an instruction that does not change where lanes are.
    #[inline]
    pub(super) fn execute(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        op: &Op,
        active: u32,
    ) -> Result<(), Box<Mistake>> {
        match op {
            Op::Alu { run, d, from } => {
                let (mut a, mut b, mut c) = ([0; 32], [0; 32], [0; 32]);
                let out = run(
                    self.v(context, from[0], &mut a),
                    self.v(context, from[1], &mut b),
                    self.v(context, from[2], &mut c),
                );
                self.put_v(*d, active, &out);
            }
            Op::AluWide { run, d, from } => {
                let mut all = [[0; 32]; 4];
                for (to, src) in all.iter_mut().zip(from) {
                    self.w(context, *src, to);
                }
                let [a, b, c, e] = &all;
                self.put_w(*d, active, &run(a, b, c, e));
            }
            Op::Move { d, a } => {
                let mut buffer = [0; 32];
                let value = *self.v(context, *a, &mut buffer);
                self.put_v(*d, active, &value);
            }
            Op::MoveWide { d, a } => {
                let mut value = [0; 32];
                self.w(context, *a, &mut value);
                self.put_w(*d, active, &value);
            }
            Op::Select { d, a, b, p } => {
                let (mut yes, mut no) = ([0; 32], [0; 32]);
                self.w(context, *a, &mut yes);
                self.w(context, *b, &mut no);
                let mask = self.pred(*p);
                for lane in 0..32 {
                    let keep = u64::from(mask >> lane & 1).wrapping_sub(1);
                    yes[lane] = no[lane] & keep | yes[lane] & !keep;
                }
                self.put_w(*d, active, &yes);
            }
            Op::Compare { run, from, combine, with, p, q } => {
                let holds = self.compare(context, *run, from);
                let with = self.pred(*with);
                self.put_pred(*p, active, combined(*combine, holds, with));
                self.put_pred(*q, active, combined(*combine, !holds, with));
            }
            Op::CompareTo { run, from, combine, with, d, yes } => {
                let holds = combined(*combine, self.compare(context, *run, from), self.pred(*with));
                let value = std::array::from_fn(|lane| if holds >> lane & 1 == 1 { *yes } else { 0 });
                self.put_narrow(*d, active, &value);
            }
            Op::CompareHalves { low, high, from, combine, with, p, q } => {
                let low = self.compare(context, Compare::V(*low), from);
                let high = self.compare(context, Compare::V(*high), from);
                let with = self.pred(*with);
                self.put_pred(*p, active, combined(*combine, low, with));
                self.put_pred(*q, active, combined(*combine, high, with));
            }
            Op::Logic { run, d, a, b } => {
                let value = run(self.pred(*a), self.pred(*b));
                self.put_pred(*d, active, value);
            }
            Op::Carry { run, d, from, reads, writes } => self.carry(context, active, *run, *d, from, (*reads, *writes)),
            Op::Special { d, which } => self.special(context, active, *d, *which),
            Op::Convert { spec, d, a, b } => self.convert(context, active, spec, *d, *a, *b),
            Op::Pack { d, from, bits } => {
                let mut out = [0u64; 32];
                let mut part = [0; 32];
                for (at, src) in from.iter().enumerate() {
                    self.w(context, *src, &mut part);
                    for (to, from) in out.iter_mut().zip(&part) {
                        *to |= (from & (u64::MAX >> (64 - bits))) << (*bits as usize * at);
                    }
                }
                self.put_w(*d, active, &out);
            }
            Op::Unpack { d, from, bits } => {
                let mut all = [0; 32];
                self.w(context, *from, &mut all);
                for (at, to) in d.iter().enumerate() {
                    let part = all.map(|value| value >> (*bits as usize * at) & (u64::MAX >> (64 - bits)));
                    self.put_w(*to, active, &part);
                }
            }
            Op::IsSpace { p, a, window } => {
                let mut all = [0; 32];
                self.w(context, *a, &mut all);
                let mask = lanes(active).map(|lane| u32::from(in_window(*window, all[lane])) << lane).sum();
                self.put_pred(*p, active, mask);
            }
            Op::Load(load) => self.load(context, pc, active, load)?,
            Op::Store(store) => self.store(context, pc, active, store)?,
            Op::Atomic(atomic) => self.atomic(context, pc, active, atomic)?,
            Op::CopyAsync(copy) => self.copy_async(context, pc, active, copy)?,
            Op::CopyCommit => self.copies.commit(active),
            Op::CopyWait(most) => self.copy_wait(context, active, *most)?,
            Op::LoadMatrix { address, to, transposed } => self.load_matrix(context, pc, address, to, *transposed)?,
            Op::Matrix(matrix) => self.matrix(context, matrix),
            Op::Trap => {
                return context.mistake(FaultKind::Trap, pc, active.trailing_zeros(), "the kernel executed a trap");
            }
            Op::Fence => {}
            Op::WarpBarrier { .. } => context.races.join_warp(self.index as usize),
            Op::Shuffle { kind, d, p, a, b, clamp, mask } => {
                self.shuffle(context, pc, active, *kind, (*d, *p), [*a, *b, *clamp, *mask])?;
            }
            Op::Vote { kind, p, mask } => self.vote(context, active, *kind, *p, *mask),
            Op::ActiveMask { d } => self.put_narrow(*d, active, &[active; 32]),
            Op::Match { all, d, p, a, mask } => self.matches(context, active, *all, (*d, *p), *a, *mask),
            Op::Reduce { run, d, a, mask } => self.reduce(context, active, *run, *d, *a, *mask),
            Op::Print { format, arguments, result } => {
                self.print(context, pc, active, *format, *arguments, *result)?;
            }
            Op::AssertFail { message, file, line } => self.assert_fail(context, pc, active, *message, *file, *line)?,
            Op::Branch { .. } | Op::BranchIndex { .. } | Op::Exit | Op::Barrier(_) => {}
        }
        Ok(())
    }

    #[inline]
    fn compare(&self, context: &Context<'_>, run: Compare, from: &[Src; 2]) -> u32 {
        match run {
            Compare::V(run) => {
                let (mut a, mut b) = ([0; 32], [0; 32]);
                run(self.v(context, from[0], &mut a), self.v(context, from[1], &mut b))
            }
            Compare::W(run) => {
                let (mut a, mut b) = ([0; 32], [0; 32]);
                self.w(context, from[0], &mut a);
                self.w(context, from[1], &mut b);
                run(&a, &b)
            }
        }
    }

    /// `add.cc` and its like. The carry is predicate 1.
    fn carry(
        &mut self,
        context: &Context<'_>,
        active: u32,
        run: fn(u64, u64, u64, u64) -> (u64, u64),
        d: Dst,
        from: &[Src; 3],
        (reads, writes): (bool, bool),
    ) {
        let mut all = [[0; 32]; 3];
        for (to, src) in all.iter_mut().zip(from) {
            self.w(context, *src, to);
        }
        let old = if reads { self.pred(Pred { at: 1, negated: false }) } else { 0 };
        let (mut out, mut carries) = ([0; 32], 0);
        for lane in lanes(active) {
            let (value, carry) = run(all[0][lane], all[1][lane], all[2][lane], u64::from(old >> lane & 1));
            out[lane] = value;
            carries |= (carry as u32 & 1) << lane;
        }
        self.put_w(d, active, &out);
        if writes {
            self.put_pred(1, active, carries);
        }
    }

    fn special(&mut self, context: &Context<'_>, active: u32, d: Dst, which: Special) {
        let launch = context.job.launch;
        let axis = |of: [u32; 3], axis: u8| u64::from(of[usize::from(axis)]);
        let thread = |lane: usize| context.thread(self.index * 32 + lane as u32);
        let threads = launch.block.iter().product::<u32>();
        let value: [u64; 32] = std::array::from_fn(|lane| match which {
            Special::Tid(at) => axis(thread(lane), at),
            Special::Ntid(at) => axis(launch.block, at),
            Special::Ctaid(at) => axis(context.block, at),
            Special::Nctaid(at) => axis(launch.grid, at),
            Special::Lane => lane as u64,
            Special::Warp => self.index.into(),
            Special::Warps => threads.div_ceil(32).into(),
            Special::Zero => 0,
            Special::Ones => 1,
            Special::LaneMask(of) => of(lane as u32).into(),
            Special::Clock => context.stats.warp_instructions,
            Special::SharedBytes { dynamic: true } => launch.shared_bytes.into(),
            Special::SharedBytes { dynamic: false } => context.job.shared.iter().map(|(_, size)| size).sum(),
        });
        self.put_w(d, active, &value);
    }
}

#[inline]
fn combined(combine: Combine, holds: u32, with: u32) -> u32 {
    match combine {
        Combine::And => holds & with,
        Combine::Or => holds | with,
        Combine::Xor => holds ^ with,
    }
}

fn in_window(window: Window, address: u64) -> bool {
    let inside = |window: Window| address.wrapping_sub(base(window)) < WINDOW;
    match window {
        Window::Generic | Window::Global => ![Window::Shared, Window::Local, Window::Param].into_iter().any(inside),
        _ => inside(window),
    }
}

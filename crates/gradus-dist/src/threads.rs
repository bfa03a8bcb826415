//! An [`Engine`] between threads of one process.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use gradus_tensor::{Error, ErrorKind, Result};

use crate::communicator::Communicator;
use crate::engine::{Channel, Engine, GRACE, Incoming, Notice, Outgoing, Stop, Until};
use crate::group::Options;
use crate::on_device::Peers;

/// What has been sent to one rank.
#[derive(Debug, Default)]
struct Mailbox {
    messages: HashMap<(usize, Channel), VecDeque<Vec<u8>>>,
    notices: HashMap<usize, (Notice, Instant)>,
}

#[derive(Debug, Default)]
struct Post {
    mail: Mutex<Mailbox>,
    arrived: Condvar,
}

impl Post {
    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mail.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// One rank of [`engines`].
#[derive(Debug)]
struct Thread {
    rank: usize,
    posts: Arc<[Post]>,
}

/// An engine for each of `size` ranks.
pub(crate) fn engines(size: usize) -> Vec<Box<dyn Engine>> {
    let posts: Arc<[Post]> = (0..size).map(|_| Post::default()).collect();
    (0..size).map(|rank| Box::new(Thread { rank, posts: posts.clone() }) as Box<dyn Engine>).collect()
}

impl Engine for Thread {
    fn name(&self) -> String {
        "threads".into()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.posts.len()
    }

    // It leaves nothing behind: messages are copies.
    unsafe fn exchange(
        &self,
        channel: Channel,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        _: Until,
        deadline: Instant,
    ) -> Result<(), Stop> {
        for Outgoing { to, bytes } in outgoing {
            self.posts[*to].lock().messages.entry((self.rank, channel)).or_default().push_back(bytes.to_vec());
            self.posts[*to].arrived.notify_all();
        }
        let mine = &self.posts[self.rank];
        let mut mail = mine.lock();
        let mut missing: Vec<&mut Incoming<'_>> = incoming.iter_mut().collect();
        loop {
            missing.retain_mut(|one| {
                let queue = mail.messages.get_mut(&(one.from, channel));
                let Some(message) = queue.and_then(VecDeque::pop_front) else { return true };
                let n = message.len().min(one.room.len());
                one.room[..n].copy_from_slice(&message[..n]);
                false
            });
            if missing.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            for (&rank, (notice, since)) in &mail.notices {
                match notice {
                    Notice::Failed(why) => return Err(Stop::Failed { rank, why: why.clone() }),
                    Notice::Left if missing.iter().any(|one| one.from == rank) && now > *since + GRACE => {
                        return Err(Stop::Left { rank });
                    }
                    Notice::Left => {}
                }
            }
            if now >= deadline {
                return Err(Stop::Late { from: missing.iter().map(|one| one.from).collect(), to: vec![] });
            }
            let wait = (deadline - now).min(GRACE);
            mail = mine.arrived.wait_timeout(mail, wait).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    #[cfg(all(feature = "nccl", unix))]
    fn look(&self, _: &[usize]) -> Result<(), Stop> {
        let mail = self.posts[self.rank].lock();
        let failed = mail.notices.iter().find_map(|(&rank, (notice, _))| match notice {
            Notice::Failed(why) => Some(Stop::Failed { rank, why: why.clone() }),
            Notice::Left => None,
        });
        failed.map_or(Ok(()), Err)
    }

    fn notify(&self, notice: &Notice) {
        let told = |rank: usize| rank != self.rank || *notice != Notice::Left;
        for (_, post) in self.posts.iter().enumerate().filter(|(rank, _)| told(*rank)) {
            post.lock().notices.entry(self.rank).or_insert_with(|| (notice.clone(), Instant::now()));
            post.arrived.notify_all();
        }
    }

    fn close(&self, _: bool, _: Instant) {}
}

/// Runs `f` on `size` threads, each a rank of one communicator, and returns their results in the order of ranks. A rank
/// whose `f` returns an error, or panics, leaves: the others find out at their next call.
///
/// # Errors
/// The first error in the order of ranks, but an error of a rank itself before one about another rank.
pub fn threads<R: Send>(
    size: usize,
    options: Options,
    f: impl Fn(&Arc<dyn Communicator>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if size == 0 {
        return Err(Error::argument("threads", "0 ranks; there is at least one"));
    }
    let f = &f;
    let results: Vec<Result<R>> = std::thread::scope(|scope| {
        let run = |engine| {
            let options = options.clone();
            scope.spawn(move || f(&(Arc::new(Peers::new(engine, options)) as Arc<dyn Communicator>)))
        };
        let ranks: Vec<_> = engines(size).into_iter().map(run).collect();
        let panicked = || Err(Error::new(ErrorKind::Peer, "threads", "the function panicked on a rank"));
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|_| panicked())).collect()
    });
    let is_peers = |result: &Result<R>| result.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Peer);
    if results.iter().any(|result| result.is_err() && !is_peers(result)) {
        return results.into_iter().filter(|result| !is_peers(result)).collect();
    }
    results.into_iter().collect()
}

//! Disks that stall.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus_tensor::ErrorKind;
use gradus_train::Trainer;

use crate::{Bad, JOB, Job, checkpoint, names};

#[test]
fn a_disk_of_one_rank_that_stalls_is_an_error_on_all_within_the_deadline() {
    let whole = JOB.model(1);
    for of in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let trainer = |trainer: Trainer, rank: usize| {
            // Rank 0 writes the manifest, too.
            let stalls_from = (rank == of).then_some(if of == 0 { 2 } else { 1 });
            let trainer = trainer.save_deadline(Duration::from_secs(2));
            trainer.disk(Arc::new(Bad { stalls_from, ..Bad::default() }))
        };
        let begun = Instant::now();
        let outcomes = Job { trainer: &trainer, ..JOB }.in_folder(dir.path(), |job| job.outcomes(4));
        assert!(begun.elapsed() < Duration::from_secs(30));
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let e = outcome.err().unwrap();
            let text = e.to_string();
            let late = format!("checkpoint-000002.part-{of}-of-4.safetensors was not written within 2s");
            assert!(text.contains(&late) && text.contains("the checkpoint of step 6 is not saved"), "{text}");
            let (kind, named) = match rank == of {
                true => (ErrorKind::Io, format!("this is rank {of} of 4")),
                false => (ErrorKind::Peer, format!("rank {of}: ")),
            };
            assert!(*e.kind() == kind && text.contains(&named), "{text}");
        }
        // The others have removed their files, and that of the disk that stalls is not there yet.
        assert_eq!(names(dir.path()), checkpoint(1, 4));
        assert!(JOB.in_folder(dir.path(), |job| job.model(2)) == whole);
    }
}

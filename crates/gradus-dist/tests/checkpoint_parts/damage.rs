//! Parts that are damaged.

use std::fs;
use std::path::Path;

use gradus_tensor::{Error, ErrorKind};
use gradus_train::Checkpoints;

use crate::{JOB, Job, STEPS, checkpoint, device};

#[test]
fn a_damaged_part_is_named_and_the_checkpoint_before_it_is_used() {
    let saved = || {
        let dir = tempfile::tempdir().unwrap();
        let job = Job { stop: Some(4), ..JOB };
        job.in_folder(dir.path(), |job| drop(job.model(2)));
        dir
    };
    let file = |dir: &tempfile::TempDir, number: usize, rank: usize| dir.path().join(&checkpoint(number, 2)[1 + rank]);
    type Harm<'a> = Box<dyn Fn(&tempfile::TempDir) + 'a>;
    let flip = |dir: &tempfile::TempDir| {
        let mut bytes = fs::read(file(dir, 2, 1)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(file(dir, 2, 1), bytes).unwrap();
    };
    let harms: [(Harm<'_>, &str); 3] = [
        (Box::new(|dir| fs::remove_file(file(dir, 2, 1)).unwrap()), "No such file"),
        (Box::new(flip), "CRC-32"),
        (Box::new(|dir| assert!(fs::copy(file(dir, 1, 1), file(dir, 2, 1)).unwrap() > 0)), "manifest says"),
    ];
    for ((harm, says), ranks) in harms.into_iter().zip([1, 4, 2]) {
        let dir = saved();
        harm(&dir);
        let found = Checkpoints::open(dir.path()).unwrap().newest(&device().unwrap()).unwrap().unwrap();
        assert_eq!(found.step, STEPS);
        let text = found.passed_over[0].to_string();
        assert!(text.contains("checkpoint-000002.part-1-of-2.safetensors") && text.contains(says), "{text}");
        assert!(JOB.in_folder(dir.path(), |job| job.model(ranks)) == JOB.model(1), "{says}");
    }
    // Without an undamaged one, all ranks end.
    let dir = saved();
    flip(&dir);
    fs::remove_file(file(&dir, 1, 0)).unwrap();
    for (rank, outcome) in JOB.in_folder(dir.path(), |job| job.outcomes(4)).into_iter().enumerate() {
        let e = outcome.err().unwrap();
        assert_eq!(*e.kind(), if rank == 0 { ErrorKind::Format } else { ErrorKind::Peer }, "{e}");
        assert!(e.to_string().contains("can be used: ") && e.to_string().contains("CRC-32"), "{e}");
    }
}

/// The CRC-32 of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), bit))
}

/// Changes the header of a part of checkpoint 2, and lets its manifest say so.
fn rewrite(folder: &Path, rank: usize, change: &dyn Fn(&str) -> String) {
    let [name, manifest] = [1 + rank, 0].map(|i| checkpoint(2, 2)[i].clone());
    let old = fs::read(folder.join(&name)).unwrap();
    let end = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let header = change(std::str::from_utf8(&old[8..end]).unwrap());
    let new = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &old[end..]].concat();
    fs::write(folder.join(&name), &new).unwrap();
    let text = fs::read_to_string(folder.join(&manifest)).unwrap();
    let (before, after) = text.split_at(text.find(&name).unwrap());
    let after = after.replacen(&format!(": {}", old.len()), &format!(": {}", new.len()), 1);
    let after = after.replacen(&format!("{:08x}", crc32(&old)), &format!("{:08x}", crc32(&new)), 1);
    fs::write(folder.join(&manifest), before.to_owned() + &after).unwrap();
}

#[test]
fn parts_that_do_not_fit_together_are_damaged_even_if_their_checksums_are_right() {
    const KEY: &str = "\"cut:model.1.weight\":\"";
    let whole = JOB.model(1);
    // The place of the elements of a weight [7, 5] in a part.
    let place = |change: &'static dyn Fn(usize) -> String| {
        move |header: &str| {
            let (before, rest) = header.split_once(KEY).unwrap();
            let (old, after) = rest.split_once('"').unwrap();
            let start = old.strip_suffix(" 7 5").unwrap().parse().unwrap();
            format!("{before}{KEY}{}\"{after}", change(start))
        }
    };
    let dtype = |header: &str| {
        let (before, after) = header.split_once("\"model.1.weight\":{").unwrap();
        format!("{before}\"model.1.weight\":{{{}", after.replacen("F32", "I32", 1))
    };
    type Change<'a> = Box<dyn Fn(&str) -> String + 'a>;
    let large = || -> Change<'static> { Box::new(place(&|start| format!("{start} 4294967296 4294967296"))) };
    let cases: Vec<(&str, Vec<(usize, Change<'_>)>)> = vec![
        ("overlap", vec![(1, Box::new(place(&|start| format!("{} 7 5", start - 1))))]),
        ("gap", vec![(1, Box::new(place(&|start| format!("{} 7 5", start + 1))))]),
        ("twice", vec![(1, Box::new(place(&|_| "0 7 5".into())))]),
        ("far", vec![(1, Box::new(place(&|_| format!("{} 7 5", u64::MAX))))]),
        ("larger than 64 bits", vec![(1, Box::new(place(&|_| format!("{}0 7 5", u64::MAX))))]),
        ("another shape", vec![(1, Box::new(place(&|start| format!("{start} 5 7"))))]),
        ("a product that overflows", vec![(0, large()), (1, large())]),
        ("a dtype", vec![(1, Box::new(dtype))]),
        ("text", vec![(1, Box::new(place(&|_| "x 7 5".into())))]),
        ("no number", vec![(1, Box::new(place(&|_| String::new())))]),
        ("no place", vec![(1, Box::new(|header| header.replacen(KEY, &KEY.replace("cut", "cup"), 1)))]),
    ];
    let check = |dir: &tempfile::TempDir, case: &str| {
        let found = Checkpoints::open(dir.path()).unwrap().newest(&device().unwrap()).unwrap().unwrap();
        let kinds: Vec<&ErrorKind> = found.passed_over.iter().map(Error::kind).collect();
        assert_eq!((found.step, kinds), (STEPS, vec![&ErrorKind::Format]), "{case}");
        assert!(JOB.in_folder(dir.path(), |job| job.model(2)) == whole, "{case}");
    };
    let saved = || {
        let dir = tempfile::tempdir().unwrap();
        Job { stop: Some(4), ..JOB }.in_folder(dir.path(), |job| drop(job.model(2)));
        dir
    };
    for (case, changes) in &cases {
        let dir = saved();
        changes.iter().for_each(|(rank, change)| rewrite(dir.path(), *rank, change));
        check(&dir, case);
    }
    // The manifest lists a file too many, or one too few.
    let manifest = |change: &dyn Fn(&str) -> String| {
        let dir = saved();
        let path = dir.path().join(&checkpoint(2, 2)[0]);
        let text = fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once("\"others\": [").unwrap();
        let (others, after) = rest.split_once(']').unwrap();
        fs::write(&path, format!("{before}\"others\": [{}]{after}", change(others))).unwrap();
        dir
    };
    check(&manifest(&|others| format!("{others}, {others}")), "a file too many");
    check(&manifest(&|_| String::new()), "a file too few");
    // Unchanged, it is the newest.
    let dir = saved();
    rewrite(dir.path(), 1, &|header| format!("{header}  "));
    let found = Checkpoints::open(dir.path()).unwrap().newest(&device().unwrap()).unwrap().unwrap();
    assert!(found.passed_over.is_empty() && found.step > STEPS);
}

//! The random programs of `cargo xtask fuzz-grad`: a few of them, and that they would find a mistake.

#[path = "../examples/fuzz_grad/harness/mod.rs"]
mod harness;

use harness::{Feature, Options};

#[test]
fn random_programs_agree_with_the_reference_and_have_everything() {
    let (counts, found) = harness::fuzz(2, 400, 1, 1, Options::default());
    assert!(found.is_empty(), "{found:?}");
    let common = [Feature::View, Feature::Write, Feature::Hook, Feature::Checkpoint, Feature::Retain, Feature::Create];
    for feature in common {
        assert!(counts.with(feature) > 40, "{feature:?}: {counts}");
    }
    let rare = [Feature::Double, Feature::Threads, Feature::StaleUse, Feature::FreedError, Feature::WriteRefused];
    for feature in rare {
        assert!(counts.with(feature) > 4, "{feature:?}: {counts}");
    }
    assert!(counts.with(Feature::StaleError) > 80, "{counts}");
    assert!(counts.with(Feature::Undecided) + counts.with(Feature::Large) < 20, "{counts}");
}

#[test]
fn a_planted_mistake_is_found_and_shrinks_to_one_short_line() {
    let planted = Options { planted: true, ..Options::default() };
    let (_, found) = harness::fuzz(1, 400, 1, 1, planted);
    let found = found.first().unwrap();
    assert_eq!(found.failure.kind, "wrong gradient", "{found:?}");
    assert!(found.line.len() < 120 && found.line.contains("hook"), "{found:?}");
    assert_eq!(harness::one(&found.line, planted).unwrap_err().kind, "wrong gradient");
    harness::one(&found.line, Options::default()).unwrap();
}

#[test]
fn a_line_is_the_program() {
    for index in 0..200 {
        let line = harness::line(3, index);
        let again = harness::parse(&line).unwrap();
        assert_eq!(again.to_string(), line);
    }
    for wrong in ["%1=leaf(", "%1=flea(;1)", "leaf(;1", "%1=leaf(;1)}", "%1=leaf(;x)", "%99999=leaf(;1)", "ckpt(%1)"] {
        assert!(harness::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_makes_no_sense_is_left_out_on_both_sides() {
    let line = "%1=leaf(;5,2); %2=sin(%7); %3=select(%1;0,9); %1=data(;1); ckpt(){}(); %4=reshape(%1;-3); \
                %5=grad(%9,_,%1;1,1); %6=sum(%1;9,0); fill_(%8;1); unhook(%3)";
    let counts = harness::one(line, Options::default()).unwrap();
    assert_eq!((counts.statements, counts.passes), (1, 0));
}

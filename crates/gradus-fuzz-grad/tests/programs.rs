//! Runs some random programs of `cargo xtask fuzz-grad`, and checks that they find planted mistakes.

use gradus_fuzz_grad::{Counts, Failure, Options, Planted, fuzz, one, parse};

#[test]
fn random_programs_agree_with_the_reference_and_have_everything() {
    let (counts, found) = fuzz(2, 1000, 1, 1, Options::default());
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(counts.amiss(), Vec::<String>::new(), "{counts}");
}

#[test]
fn planted_mistakes_are_found_and_shrink_to_one_short_line() {
    for &planted in Planted::ALL {
        let options = Options { planted: Some(planted), ..Options::default() };
        let (_, found) = fuzz(1, 400, 1, 1, options);
        let found = found.first().unwrap();
        let (kind, line) = (found.failure.kind, &found.line);
        let (kinds, names): (&[&str], &[&str]) = match planted {
            Planted::Hook => (&["wrong gradient"], &["hook"]),
            Planted::Severed => (&["severed graph"], &["grad_create"]),
            // The gradient is right and tracked. Only a second gradient shows that half of the graph is missing.
            Planted::Halved => (&["wrong gradient"], &["grad_create"]),
            Planted::Unguarded => {
                (&["false alarm", "missing error"], &["packed", "allow_mutation", "strict_inplace", "strict"])
            }
        };
        assert!(kinds.contains(&kind) && names.iter().any(|name| line.contains(name)), "{planted:?}: {found:?}");
        assert!(found.index < 400 && line.len() < 160, "{planted:?}: {found:?}");
        assert_eq!(one(line, options).unwrap_err().kind, kind);
        one(line, Options::default()).unwrap();
    }
}

#[test]
fn a_line_is_the_program() {
    for index in 0..200 {
        let line = gradus_fuzz_grad::line(3, index);
        let again = parse(&line).unwrap();
        assert_eq!(again.to_string(), line);
    }
    for wrong in ["%1=leaf(", "%1=flea(;1)", "leaf(;1", "%1=leaf(;1)}", "%1=leaf(;x)", "%99999=leaf(;1)", "ckpt(%1)"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_makes_no_sense_is_left_out_on_both_sides() {
    let line = "%1=leaf(;5,2); %2=sin(%7); %3=select(%1;0,9); %1=data(;1); ckpt(){}(); %4=reshape(%1;-3); \
                %5=grad(%9,_,%1;1,1); %6=sum(%1;9,0); fill_(%8;1); unhook(%3)";
    let counts = one(line, Options::default()).unwrap();
    assert_eq!((counts.statements, counts.passes), (1, 0));
}

#[test]
fn switches_hold_on_one_line() {
    for (block, numbers) in [("packed", 1), ("allow_mutation", 1)] {
        let line = format!("%1=leaf(;5); %2=data(;7); {block}(){{%3=mul(%1,%2)}}(); fill_(%2;4); %4=grad(%3,_,%1;1,1)");
        let counts = agree(&line).unwrap();
        assert_eq!((counts.numbers, counts.stale_errors), (numbers, 0), "{line}");
    }
    let strict =
        agree("%1=leaf(;5); %2=data(;7); strict(){%3=add(%1,%2)}(); fill_(%2;4); %4=grad(%3,_,%1;1,1)").unwrap();
    assert_eq!((strict.numbers, strict.stale_errors), (0, 1));
    let refused =
        agree("%1=leaf(;5); %2=data(;7); strict_inplace(){%3=mul(%1,%2)}(); fill_(%2;4); %4=grad(%3,_,%1;1,1)")
            .unwrap();
    assert_eq!((refused.numbers, refused.stale_errors), (1, 0));
    let plain = agree("%1=leaf(;5); %2=data(;7); %3=mul(%1,%2); fill_(%2;4); %4=grad(%3,_,%1;1,1)").unwrap();
    assert_eq!((plain.numbers, plain.stale_errors), (0, 1));
}

#[test]
fn every_write_in_place_is_seen_where_it_lies() {
    // In-place writes to values that a gradient needs, and to their neighbours.
    for (of, write, source) in [
        ("%2", "zero_(%9)", ""),
        ("%2", "div_(%9,%8)", "%8=data(;3)"),
        ("%2", "index_assign_(%9,%8;0,1)", "%8=data(;3)"),
        ("%2", "index_put_(%9,%8;1,2,0)", "%8=data(;3)"),
        ("%2", "index_add_(%9,%8;1,2,0)", "%8=data(;3,2)"),
        ("%2", "index_copy_(%9,%8;1,2,0)", "%8=data(;3,2)"),
        ("%2", "index_fill_(%9;1,2,0,4)", ""),
        ("%2", "scatter_(%9,%8;1,2,0)", "%8=data(;3,2)"),
        ("%2", "scatter_add_(%9,%8;1,2,0)", "%8=data(;3,2)"),
        ("%2", "masked_fill_(%9;5,4)", ""),
    ] {
        let program = |of: &str| {
            format!(
                "%1=leaf(;5,3); %7=data(;7,3,2); {source}; %2=select(%7;1,0); %3=select(%7;1,1); %4=mul(%1,%2); \
                 %9=detach({of}); {write}; %5=grad(%4,%1,%1;1,1)"
            )
            .replace("; ;", ";")
        };
        let (over, beside) = (agree(&program(of)).unwrap(), agree(&program("%3")).unwrap());
        assert_eq!((over.stale_errors + over.beside, over.numbers), (1, 0), "{write}");
        assert_eq!((beside.stale_errors + beside.beside, beside.numbers), (0, 3), "{write}");
    }
}

fn agree(line: &str) -> Result<Counts, Failure> {
    one(line, Options::default())
}

#[test]
fn a_fused_kernel_of_three_operands_is_differentiated_six_times() {
    let line = "%1=leaf(;86); %2=hook(%1;2,16); %3=fused3(%1,%1,%1); %4=grad_create(%3,_,%1;1,1); %5=grad_create(%4,_,%1;1,1); \
                %6=grad_create(%5,_,%1;1,1); %7=grad_create(%6,_,%1;1,1); %8=grad_create(%7,%5,%1;1,1); \
                %9=grad(%8,%8,%1;1,1)";
    agree(line).unwrap();
}

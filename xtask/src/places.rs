//! Adds operations to a copy of the tree as `docs/add-an-op.md` says, and counts the files that must be changed by
//! hand.
//!
//! In the copy, `bless` generates everything else that names operations. Then all checks of operations must pass.

use std::path::Path;
use std::process::Command;

/// Text to add to a file after text that the file contains.
struct Addition {
    file: &'static str,
    after: &'static str,
    text: &'static str,
}

/// An addition to the library, which must require changes to at most `most` files.
struct Change {
    what: &'static str,
    most: usize,
    additions: &'static [Addition],
}

const SAMPLES: &str = "crates/gradus/tests/golden/samples.rs";

const CHANGES: [Change; 5] = [
    Change {
        what: "an elementwise operation with a kink",
        most: 1,
        additions: &[Addition {
            file: "crates/gradus-tensor/src/ops/table.rs",
            after: "table! {",
            text: r#"
    /// `|x| - 1` where that is above 0, else 0. The slope at -1 and 1 is 0.
    BEYOND_ONE beyond_one() Float {
        smooth: ANY, torch: "",
        kinks: [{ at: "-1, 1", inputs: [[-1.0, 1.0]], slopes: "0, 0", why: "as relu" }],
        formula: |x| (x[0].abs() - 1.0).relu(),
    }"#,
        }],
    },
    Change {
        what: "a reduction",
        most: 2,
        additions: &[
            Addition {
                file: "crates/gradus-tensor/src/ops/reduce.rs",
                after: "\nimpl Tensor {",
                text: r#"
    /// Sum of the squares over the axes, in the dtype of [`sum`](Tensor::sum).
    #[track_caller]
    pub fn sum_of_squares(&self, axes: &[isize], keepdim: bool) -> Result<Tensor> {
        self.square()?.sum(axes, keepdim)
    }
"#,
            },
            Addition {
                file: SAMPLES,
                after: "\nothers! {",
                text: r#"
    sum_of_squares {
        inputs: [Input::Floats(-2.0, 2.0, &[3, 4])], torch: "", kinks: &[],
        call: |x| x[0].sum_of_squares(&[0], false),
    }"#,
            },
        ],
    },
    Change {
        what: "a composite of operations, with a kink",
        most: 2,
        additions: &[
            Addition {
                file: "crates/gradus-tensor/src/ops/pointwise.rs",
                after: "\nimpl Tensor {",
                text: r#"
    /// `|self - other|`, broadcast. The slopes where both are equal are 0.
    #[track_caller]
    pub fn apart(&self, other: &Tensor) -> Result<Tensor> {
        self.sub(other)?.abs()
    }
"#,
            },
            Addition {
                file: SAMPLES,
                after: "\nothers! {",
                text: r#"
    apart {
        inputs: [Input::Floats(0.0, 1.0, &[3, 4]), Input::Floats(2.0, 3.0, &[4])], torch: "",
        kinks: &[Kink { at: "equal operands", inputs: &[&[2.0], &[2.0]], slopes: "0; 0", why: "as abs" }],
        call: |x| x[0].apart(&x[1]),
    }"#,
            },
        ],
    },
    Change {
        what: "an optimiser",
        most: 2,
        additions: &[
            Addition {
                file: "crates/gradus-nn/src/optim/mod.rs",
                after: "\nmod sgd;",
                text: "\nmod sign_sgd;\npub use sign_sgd::{SignSgd, SignSgdConfig};",
            },
            Addition {
                file: "crates/gradus-nn/src/optim/sign_sgd.rs",
                after: "",
                text: r#"//! [`SignSgd`].

use gradus_tensor::{Result, Tensor, UpdateFn};

use super::Group;
use super::stepper::{Hyper, Rule, Stepper};
use crate::Parameter;

/// `p -= lr * sign(g)` (Bernstein et al., 2018).
pub struct SignSgd(pub(super) Stepper<SignSgdConfig>);

/// Hyper-parameters of [`SignSgd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignSgdConfig {
    /// Learning rate.
    pub lr: f64,
}

static SIGN_SGD: UpdateFn = UpdateFn::new("sign_sgd", |x| vec![x[0] - x[2] * x[1].sign()]);

impl SignSgd {
    /// For these parameters, in one group.
    #[track_caller]
    pub fn new(parameters: impl IntoIterator<Item = (String, Parameter)>, config: SignSgdConfig) -> Result<Self> {
        Stepper::new(config, [Group::new(parameters)]).map(SignSgd)
    }
}

impl Rule for SignSgdConfig {
    fn name(&self) -> &'static str {
        "sign_sgd"
    }

    fn defaults(&self) -> (f64, f64) {
        (self.lr, 0.0)
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn slots(&self) -> &'static [&'static str] {
        &[]
    }

    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, _: &[Tensor]) -> Result<()> {
        SIGN_SGD.apply(&[target], &[target, gradient], &[hyper.lr])
    }
}

super::optimizer!(SignSgd);
"#,
            },
        ],
    },
    Change {
        what: "an image filter",
        most: 2,
        additions: &[
            Addition {
                file: "crates/gradus-image/src/edges.rs",
                after: "use crate::picture::{Picture, not_negative};\n",
                text: r#"
/// The difference between the neighbours above and to the left and those below and to the right, around a grey of 0.5.
///
/// # Errors
/// What is no image.
#[track_caller]
pub fn emboss(x: &Tensor, border: Border) -> Result<Tensor> {
    let picture = Picture::new("emboss", x)?;
    if picture.is_empty() {
        return Ok(x.clone());
    }
    let kernel: [&[f64]; 3] = [&[1.0, 1.0, 0.0], &[1.0, 0.0, -1.0], &[0.0, -1.0, -1.0]];
    picture.with_alpha(&weighted(&picture.colour()?, &kernel, border)?.add(0.5)?)
}
"#,
            },
            Addition {
                file: "crates/gradus-image/src/lib.rs",
                after: "\npub use convert::{from_hwc, to_bytes, to_float, to_hwc};",
                text: "\npub use edges::emboss;",
            },
        ],
    },
];

/// The commands that must pass in the copy after `bless`: all checks that know about operations.
const CHECKS: [&[&str]; 5] = [
    &["test", "-q", "-p", "gradus", "--test", "golden", "--test", "kinks", "--test", "prelude", "--test", "operations"],
    &["test", "-q", "-p", "gradus-fuzz", "--test", "calls"],
    &["test", "-q", "-p", "gradus-tensor", "--test", "gradients", "--test", "values", "--test", "pointwise"],
    &["test", "-q", "-p", "gradus-nn", "-p", "gradus-image", "--lib", "--tests"],
    &["run", "-q", "-p", "xtask", "--", "tidy"],
];

/// Pages of the copy, each with text that names an added operation.
const NAMED: [(&str, &str); 5] = [
    ("docs/op-matrix.md", "| `beyond_one` |"),
    ("docs/kinks.md", "| `beyond_one` | -1, 1 | 0, 0 |"),
    ("docs/higher-order.md", "| `sum_of_squares` |"),
    ("docs/kinks.md", "| `apart` | equal operands | 0; 0 |"),
    ("docs/op-matrix.md", "| `apart` |"),
];

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let copy = root.join("target/places");
    copied(root, &copy)?;
    for change in &CHANGES {
        for addition in change.additions {
            add(&copy, addition)?;
        }
    }
    cargo(root, &copy, &["run", "-q", "-p", "xtask", "--", "bless"])?;
    for (page, text) in NAMED {
        if !read(&copy.join(page))?.contains(text) {
            return Err(format!("{page} of the copy does not have {text:?}"));
        }
    }
    CHECKS.iter().try_for_each(|arguments| cargo(root, &copy, arguments))?;
    for Change { what, most, additions } in &CHANGES {
        let mut files: Vec<&str> = additions.iter().map(|a| a.file).collect();
        files.dedup();
        println!("{what}: {}", files.join(", "));
        if files.len() > *most {
            return Err(format!("{what} needs {} files, {most} are promised", files.len()));
        }
    }
    Ok(())
}

/// Copies all files that git tracks, and new files that it does not ignore.
fn copied(root: &Path, copy: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", copy.display());
    if copy.exists() {
        std::fs::remove_dir_all(copy).map_err(failed)?;
    }
    let list = Command::new("git").args(["ls-files", "-coz", "--exclude-standard"]).current_dir(root).output();
    let list = String::from_utf8(list.map_err(failed)?.stdout).map_err(|e| e.to_string())?;
    for name in list.split('\0').filter(|name| root.join(name).is_file()) {
        let to = copy.join(name);
        std::fs::create_dir_all(to.parent().unwrap_or(copy)).map_err(failed)?;
        std::fs::copy(root.join(name), to).map_err(failed)?;
    }
    let git = |arguments: &[&str]| {
        let status = Command::new("git").args(arguments).current_dir(copy).status().map_err(failed)?;
        status.success().then_some(()).ok_or_else(|| format!("git {arguments:?}: {status}"))
    };
    git(&["init", "-q"])?;
    git(&["add", "-A"])
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn add(copy: &Path, Addition { file, after, text }: &Addition) -> Result<(), String> {
    let path = copy.join(file);
    let old = if after.is_empty() { String::new() } else { read(&path)? };
    let at = old.find(after).ok_or_else(|| format!("{file} has no {after:?}"))? + after.len();
    std::fs::write(&path, format!("{}{text}{}", &old[..at], &old[at..])).map_err(|e| format!("{file}: {e}"))
}

fn cargo(root: &Path, copy: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = crate::workspace::cargo();
    // If this variable were set, xtask would work on the original tree.
    command.args(arguments).current_dir(copy).env_remove("CARGO_MANIFEST_DIR");
    let status = command.env("CARGO_TARGET_DIR", root.join("target/places-target")).status();
    let status = status.map_err(|e| format!("cargo did not start: {e}"))?;
    status.success().then_some(()).ok_or_else(|| format!("in the copy, cargo {}: {status}", arguments.join(" ")))
}

//! `docs/sources.md`: checks that every name of the five source libraries, and every difference in meaning, has a row
//! with a call and a test.

use std::collections::BTreeSet;
use std::path::Path;

/// The sections of the page, and the names in each.
const SOURCES: [(&str, &str); 10] = [
    (
        "## S0: RUMUS 0.3.1, `trait Backend` (38)",
        "zeros full add sub mul scale relu relu_backward matmul add_bias sum_rows im2col col2im add_channel_bias \
         sum_channel_bias_grad max_pool2d max_pool2d_backward dropout sigmoid sigmoid_backward tanh_act tanh_backward \
         gelu gelu_backward leaky_relu leaky_relu_backward batch_norm_forward batch_norm_backward adaptive_avg_pool2d \
         adaptive_avg_pool2d_backward bmm softmax_forward softmax_backward layer_norm_forward layer_norm_backward \
         embedding_forward embedding_backward cross_entropy_forward",
    ),
    ("## S0: the types around it (2)", "Backend CpuBackend"),
    (
        "## S1: backward operations of RUMUS 0.1.0 (16)",
        "AddBackward SubBackward MulBackward MatmulBackward ReluBackward MseLossBackward AddBiasBackward \
         SliceBatchBackward Im2ColBackward StackBackward AddChannelBiasBackward MaxPool2dBackward ReshapeBackward \
         FlattenBackward CrossEntropyBackward DropoutBackward",
    ),
    (
        "## S1: the graph around them (19)",
        "BackwardOp VersionSnapshot VersionSnapshot::new VersionSnapshot::check AutogradError \
         AutogradError::VersionMismatch AutogradError::ShapeMismatch AutogradError::NoGraph AutogradError::MissingGrad \
         GradId StorageHandle WeakStorageHandle Tape TapeEntry GradientStore backward backward_with_grad no_grad \
         NoGradGuard",
    ),
    (
        "## S2: HLX, `trait Backend` (52)",
        "name is_available alloc_tensor free_tensor tensor_meta write_tensor read_tensor scalar_add scalar_sub scalar_mul \
         scalar_div scalar_mod scalar_sqrt scalar_pow scalar_sin scalar_cos scalar_tan scalar_log scalar_exp scalar_floor \
         scalar_ceil scalar_round scalar_abs scalar_eq scalar_ne scalar_lt scalar_le scalar_gt scalar_ge pointwise_add \
         matmul matmul_bias layer_norm softmax gelu relu attention cross_entropy reduce_sum embedding adam_update \
         gaussian_blur sobel_edges grayscale threshold brightness contrast invert_colors sharpen dispatch_compute \
         abi_fingerprint sync",
    ),
    (
        "## S2: the types around it (8)",
        "Backend TensorHandle TensorMeta DType Value BACKEND_ABI_FINGERPRINT create_backend BackendCapability",
    ),
    (
        "## S3: OxiCUDA, `trait ComputeBackend` (15)",
        "name init is_initialized gemm conv2d_forward attention reduce unary binary batched_gemm synchronize alloc free \
         copy_htod copy_dtoh",
    ),
    (
        "## S3: the types around it (13)",
        "ComputeBackend BackendTranspose BackendTranspose::NoTrans BackendTranspose::Trans BackendTranspose::ConjTrans \
         ReduceOp UnaryOp BinaryOp BackendError BackendError::Unsupported BackendError::InvalidArgument \
         BackendError::OutOfMemory BackendResult",
    ),
    ("## S4: numr 0.5.1, fused activation and product (4)", "silu_mul gelu_mul relu_mul sigmoid_mul"),
    (
        "## S4: the gradients and the kinds (10)",
        "var_silu_mul var_gelu_mul var_relu_mul var_sigmoid_mul silu_mul_bwd gelu_mul_bwd relu_mul_bwd sigmoid_mul_bwd \
         FusedKind FusedActivationMulBackward",
    ),
];

/// The section of differences in meaning.
const PORTING: &str = "## Porting";

/// Checks that each source's names occur exactly once, that no cell is empty, and that every test named exists.
pub(crate) fn sources(root: &Path) -> Result<(), String> {
    let page = root.join("docs/sources.md");
    let text = std::fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let golden = std::fs::read(root.join("crates/gradus/tests/golden/values.safetensors"))
        .map_err(|e| format!("values.safetensors: {e}"))?;
    // The file begins with the length of its header, and the header holds the names.
    let length = golden.first_chunk().map_or(0, |b| u64::from_le_bytes(*b) as usize);
    let header = String::from_utf8_lossy(golden.get(8..8 + length).unwrap_or_default()).into_owned();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (heading, names) in SOURCES {
        let found = section(&text, heading);
        wrong.extend(names_are_wrong(heading, names, &found));
        wrong.extend(found.iter().filter_map(|row| row_is_wrong(root, &header, Cells::WithCuda, row)));
        count += found.len();
    }
    let differences = section(&text, PORTING);
    if differences.is_empty() {
        wrong.push(format!("there is no section `{PORTING}` with rows"));
    }
    wrong.extend(differences.iter().filter_map(|row| row_is_wrong(root, &header, Cells::Plain, row)));
    if wrong.is_empty() {
        println!("sources: {count} names and {} differences, each with its call and test", differences.len());
        return Ok(());
    }
    Err(format!("docs/sources.md:\n{}", wrong.join("\n")))
}

/// The rows of the table under a heading, without the two header lines.
fn section<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with('|')).skip(2).collect()
}

/// Describes what is wrong with the first cells of the rows: a name that is missing, unknown, or duplicated.
fn names_are_wrong(heading: &str, names: &str, rows: &[&str]) -> Vec<String> {
    let mut absent: BTreeSet<&str> = names.split_whitespace().collect();
    let mut wrong = Vec::new();
    for row in rows {
        let name = row.split('`').nth(1).unwrap_or_default();
        if !absent.remove(name) {
            wrong.push(format!("`{heading}`: `{name}` is no name of this source, or there twice"));
        }
    }
    wrong.extend(absent.iter().map(|name| format!("`{heading}`: `{name}` has no row")));
    wrong
}

/// The cells of a row: `| name | call | test |`, or with a fourth cell that names the proof on CUDA.
#[derive(Clone, Copy, PartialEq)]
enum Cells {
    Plain,
    WithCuda,
}

/// The tests that `cargo xtask cuda` runs, besides the cases of `golden`.
const ON_CUDA: [&str; 3] =
    ["crates/gradus/tests/cuda/", "crates/gradus-cuda/tests/modules.rs", "crates/gradus-cuda/tests/injected/"];

/// Describes what is wrong with a row. A test is `golden CASE` or `FILE FUNCTION`. On CUDA the proof is such a test of those
/// that run there; or `golden`, the cases of the row; or `host`, where no device computes anything.
fn row_is_wrong(root: &Path, golden: &str, kind: Cells, row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let (name, call, tests, cuda) = match (kind, &cells[..]) {
        (Cells::Plain, [name, call, tests]) => (name, call, tests, "host"),
        (Cells::WithCuda, [name, call, tests, cuda]) => (name, call, tests, *cuda),
        _ => return Some(format!("{row}: {} cells are not what is needed", cells.len())),
    };
    if call.is_empty() || tests.is_empty() || cuda.is_empty() {
        return Some(format!("{name}: an empty cell"));
    }
    let (is_golden, named) = (tests.contains("`golden "), cuda.trim_matches('`'));
    let fits = match cuda {
        "golden" => is_golden,
        "host" => kind == Cells::Plain || !is_golden,
        _ => named.starts_with("golden ") || ON_CUDA.iter().any(|place| named.starts_with(place)),
    };
    if !fits {
        return Some(format!("{name}: {cuda} is no proof on CUDA"));
    }
    let proof = Some(cuda).filter(|cuda| !["golden", "host"].contains(cuda));
    tests.split(", ").chain(proof).find_map(|test| {
        let test = test.trim_matches('`');
        let exists = match test.split_once(' ') {
            Some(("golden", case)) => golden.contains(&format!("\"{case}/out0\"")),
            Some((file, function)) => std::fs::read_to_string(root.join(file))
                .is_ok_and(|text| text.contains(&format!("fn {function}(")) || text.contains(&format!("{function}:"))),
            None => false,
        };
        (!exists).then(|| format!("{name}: there is no test `{test}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_call_or_with_an_absent_test_are_found() {
        let root = crate::workspace::root();
        let wrong = |row: &str| row_is_wrong(&root, "{\"relu/out0\":{}", Cells::Plain, row);
        assert_eq!(wrong("| `relu` | `Tensor::relu` | `golden relu` |"), None);
        assert_eq!(
            wrong("| `add` | `a` | `xtask/src/sources.rs rows_without_call_or_with_an_absent_test_are_found` |"),
            None
        );
        assert!(wrong("| `relu` | `Tensor::relu` | `golden gelu` |").is_some());
        assert!(wrong("| `relu` | `Tensor::relu` | `xtask/src/sources.rs no_such_test` |").is_some());
        assert!(wrong("| `relu` |  | `golden relu` |").is_some());
        assert!(wrong("| `relu` | `Tensor::relu` |").is_some());
        assert!(wrong("| `relu` | `Tensor::relu` | `golden relu` | golden |").is_some());
        let wrong = |test: &str, cuda: &str| {
            let row = format!("| `relu` | `Tensor::relu` | `{test}` | {cuda} |");
            row_is_wrong(&root, "{\"relu/out0\":{}", Cells::WithCuda, &row)
        };
        let here = "xtask/src/sources.rs rows_without_call_or_with_an_absent_test_are_found";
        let there = "`crates/gradus-cuda/tests/modules.rs a_module_runs_within_its_bounds";
        assert_eq!(wrong("golden relu", "golden"), None);
        assert_eq!(wrong(here, "`golden relu`"), None);
        assert_eq!(wrong(here, "host"), None);
        assert_eq!(wrong(here, &format!("{there}_and_calls_that_do_not_match_it_are_refused`")), None);
        for absent in ["", "golden", "`golden gelu`", &format!("`{here}`"), &format!("{there}_twice`")] {
            assert!(wrong(here, absent).is_some(), "{absent}");
        }
        assert!(wrong("golden relu", "host").is_some());
    }

    #[test]
    fn names_that_are_missing_unknown_or_twice_are_found() {
        let page =
            "## S9\n\n| name | Gradus | test |\n|---|---|---|\n| `a` | x | y |\n| `b` | x | y |\n\n## Next\n| `c` |\n";
        let rows = section(page, "## S9");
        assert_eq!(rows.len(), 2);
        assert!(names_are_wrong("## S9", "a b", &rows).is_empty());
        assert!(names_are_wrong("## S9", "a b c", &rows)[0].contains("`c` has no row"));
        assert!(names_are_wrong("## S9", "a", &rows)[0].contains("`b` is no name"));
        assert_eq!(names_are_wrong("## S9", "a b", &[rows[0], rows[0], rows[1]]).len(), 1);
        assert!(section(page, "## S8").is_empty());
    }
}

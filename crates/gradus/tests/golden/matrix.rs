//! `docs/op-matrix.md`: which dtypes each operation supports, and how many times it can be differentiated. Both are
//! determined by running the operation.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use gradus::prelude::*;

use crate::{Call, File, captured, orders, sources, values};

/// Public methods that are shorthands or variants of others, and have no row.
const SHORTHANDS: &[&str] = &[
    "cross_entropy_with",
    "sum_all",
    "mean_all",
    "max_all",
    "min_all",
    "prod_all",
    "any_all",
    "all_all",
    "t",
    "contiguous",
    "copy",
    "to_dtype",
    "to_device",
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An input converted to a dtype. Floats that become integers are mapped to nonzero values.
fn converted(t: &Tensor, dtype: DType) -> Result<Tensor> {
    match dtype {
        d if d.is_float() || !t.dtype().is_float() => t.to_dtype(d),
        DType::Bool => t.gt(0.0),
        d => t.abs()?.mul(3.0)?.add(1.0)?.clamp(0.0, 100.0)?.to_dtype(d),
    }
}

/// The inputs of a case in another dtype. If there are float inputs, only those are converted; otherwise all inputs
/// are.
fn inputs_as(inputs: &[Tensor], dtype: DType) -> Result<Vec<Tensor>> {
    let any_float = inputs.iter().any(|t| t.dtype().is_float());
    let one = |t: &Tensor| if t.dtype().is_float() || !any_float { converted(t, dtype) } else { Ok(t.clone()) };
    inputs.iter().map(one).collect()
}

/// The largest permitted error of a result in a dtype compared with f64 on the same inputs, relative to the largest
/// value.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1e-4,
        DType::F16 => 2e-2,
        DType::BF16 => 1.5e-1,
        _ => 0.0,
    }
}

/// The table cell of a dtype on a device: supported or refused. A wrong result is an error that describes it.
fn cell(call: Call, inputs: &[Tensor], dtype: DType, device: &Device) -> std::result::Result<&'static str, String> {
    let x = inputs_as(inputs, dtype).map_err(|e| e.to_string())?;
    let there = x.iter().map(|t| t.to_device(device)).collect::<Result<Vec<_>>>();
    let outs = match there.and_then(|x| call(&x)) {
        Ok(outs) => outs,
        Err(e) => {
            use ErrorKind::*;
            let typed = matches!(e.kind(), UnsupportedDType | DTypeMismatch | InvalidArgument);
            return if typed { Ok("·") } else { Err(format!("{dtype}: {e}")) };
        }
    };
    if dtype.is_float() && dtype != DType::F64 {
        let wide = |t: &Tensor| if t.dtype() == dtype { t.to_dtype(DType::F64) } else { Ok(t.clone()) };
        let x = x.iter().map(wide).collect::<Result<Vec<_>>>().map_err(|e| e.to_string())?;
        for (i, (got, want)) in outs.iter().zip(call(&x).map_err(|e| e.to_string())?).enumerate() {
            let (got, want) = (values(got), values(&want));
            let scale = want.iter().filter(|w| w.is_finite()).fold(1.0, |m: f64, w| m.max(w.abs()));
            let near = |g: f64, w: f64| g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= tolerance(dtype) * scale;
            if let Some((g, w)) = got.iter().zip(&want).find(|&(&g, &w)| !near(g, w)) {
                return Err(format!("{dtype}: output {i} has {g} where f64 has {w}"));
            }
        }
    }
    Ok("●")
}

/// How many times the operation can be differentiated: the highest order that one of its calls reaches. Orders up to
/// three are tested.
fn order(file: &File<'_>, family: &str, call: Call, inputs: Vec<Tensor>) -> Result<&'static str> {
    let mut best = "0";
    for (call, inputs) in [(call, inputs)].into_iter().chain(orders::more(file, family)) {
        best = best.max(order_of(call, &inputs)?);
    }
    Ok(best)
}

/// Returns `0`, `1`, `2` or `any`. In alphabetical order, a later one means a higher order.
fn order_of(call: Call, inputs: &[Tensor]) -> Result<&'static str> {
    let point = |t: &Tensor| if t.dtype().is_float() { t.with_grad() } else { Ok(t.clone()) };
    let inputs = inputs.iter().map(point).collect::<Result<Vec<_>>>()?;
    let leaves: Vec<&Tensor> = inputs.iter().filter(|t| t.requires_grad()).collect();
    let mut tracked: Vec<Tensor> = call(&inputs)?.into_iter().filter(Tensor::requires_grad).collect();
    for reached in ["0", "1", "2"] {
        let mut total: Option<Tensor> = None;
        for y in &tracked {
            let part = y.sin()?.sum_all()?;
            total = Some(total.map_or(Ok(part.clone()), |t| t.add(&part))?);
        }
        let Some(total) = total else { return Ok(reached) };
        match grad(&[&total], &leaves, None, BackwardOptions::new().create_graph()) {
            Ok(found) => tracked = found.into_iter().flatten().filter(Tensor::requires_grad).collect(),
            Err(e) if matches!(e.kind(), ErrorKind::Autograd) => return Ok(reached),
            Err(e) => return Err(e),
        }
    }
    Ok("any")
}

/// Generates the page. Also returns descriptions of everything that is wrong.
///
/// The columns of WebGPU and of CUDA are tested if there are devices; otherwise they are copied from the existing page.
pub(crate) fn page(
    file: &File<'_>,
    wgpu: &[Device],
    cuda: &[Device],
    calls: &BTreeMap<&str, Call>,
    cases: &[&str],
) -> (String, Vec<String>) {
    let old = std::fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    let mut families: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for &name in cases {
        families.entry(name.split('/').next().unwrap_or(name)).or_default().push(name);
    }
    let (mut text, mut wrong) = (String::new(), Vec::new());
    let names: Vec<String> = DType::ALL.iter().map(|d| format!(" {d} |")).collect();
    let _ = write!(
        text,
        "# Operations, dtypes and gradients\n\nMade by `cargo xtask op-table`, which calls every operation in every \
         dtype and differentiates it up to three times. ● computes (integers promote where the operation is one of \
         floats), · is a typed error. *Gradient*: how often it can be differentiated; `0` where none exists. *Cases*: \
         how many with values from PyTorch the tests compare, with first and second gradients. *WebGPU*: ● where it \
         computes in the same dtypes and is as near; else the dtypes that differ. *No 64*: the same on an adapter \
         without 64-bit types in shaders, which has no f64. *Core*: on one that has only what WebGPU guarantees. All \
         three are found on Mesa's lavapipe, where every function of f32 (tanh, sin, pow, erf and the like) is within 1 \
         unit in the last place of the correctly rounded value (`cargo test -p gradus-wgpu --test functions` measures \
         each). *CUDA*: ● as for WebGPU, with the kernels run by an interpreter that checks each access to memory; \
         `cargo xtask cuda --all` tries it; – where that has not been run. *Captured*: ● if a captured step of the operation \
         with its first and second gradients is replayed with the same bits, in f64 and f32 (where it computes in them), for three \
         sizes of its inputs; · if it reads numbers on the host and is refused.\n\n\
         | operation |{} WebGPU | no 64 | core | CUDA | captured | gradient | cases |\n\
         |---|{}---|---|---|---|---|---|---|\n",
        names.concat(),
        "---|".repeat(DType::ALL.len())
    );
    for (family, names) in &families {
        let name = if names.contains(family) { family } else { &names[0] };
        let Some(&call) = calls.get(name).or_else(|| calls.get(family)) else { continue };
        let inputs = file.inputs(name);
        let mut row = format!("| `{family}` |");
        let mut marks = Vec::new();
        for dtype in DType::ALL {
            match cell(call, &inputs, dtype, &file.device) {
                Ok(mark) => {
                    row += &format!(" {mark} |");
                    marks.push((dtype, mark));
                }
                Err(e) => wrong.push(format!("{name}: {e}")),
            }
        }
        let old = old_cells(&old, family);
        let mut columns = String::new();
        for (devices, old) in [(wgpu, &old[..WGPU]), (cuda, &old[WGPU..])] {
            let now = devices.iter().map(|device| column(call, &inputs, &marks, (name, device), &mut wrong));
            let cells: Vec<String> = if devices.is_empty() { old.to_vec() } else { now.collect() };
            cells.iter().for_each(|cell| columns += &format!(" {cell} |"));
        }
        let replayed = captured::cell(file, family, call, &inputs).unwrap_or_else(|e| {
            wrong.push(format!("{name}: {e}"));
            ""
        });
        match order(file, family, call, inputs) {
            Ok(order) => row += &format!("{columns} {replayed} | {order} | {} |", names.len()),
            Err(e) => wrong.push(format!("{name}: gradient: {e}")),
        }
        text += &row;
        text.push('\n');
    }
    for method in sources::methods().into_keys() {
        if !families.contains_key(method.as_str()) && !SHORTHANDS.contains(&method.as_str()) && !method.ends_with('_') {
            wrong.push(format!("`Tensor::{method}` has no row: add a sample to tests/golden/samples.rs"));
        }
    }
    (text, wrong)
}

/// The path of the page, relative to the root.
pub(crate) const PAGE: &str = "docs/op-matrix.md";

/// The cell of another device: whether it matches the CPU in each dtype that the device has.
fn column(
    call: Call,
    inputs: &[Tensor],
    cpu: &[(DType, &str)],
    (name, device): (&str, &Device),
    wrong: &mut Vec<String>,
) -> String {
    let mut differ = Vec::new();
    for &(dtype, mark) in cpu.iter().filter(|(dtype, _)| device.backend().supports(*dtype)) {
        match cell(call, inputs, dtype, device) {
            Ok(found) if found == mark => {}
            Ok(_) => differ.push(dtype.name()),
            Err(e) => wrong.push(format!("{name} on {}: {e}", device.name())),
        }
    }
    if differ.is_empty() { "●".to_owned() } else { differ.join(" ") }
}

/// The number of columns of WebGPU, which are followed by that of CUDA.
const WGPU: usize = 3;

/// The cells of WebGPU and CUDA of an operation's row in the existing page. They are between the dtype columns and the last
/// three columns. An operation without a row was not tried.
fn old_cells(page: &str, family: &str) -> [String; WGPU + 1] {
    let row = page.lines().find(|l| l.starts_with(&format!("| `{family}` |")));
    let cells: Vec<&str> = row.map_or_else(Vec::new, |r| r.split('|').map(str::trim).collect());
    let cell = |at: usize| cells.get(DType::ALL.len() + 2 + at).filter(|_| cells.len() > DType::ALL.len() + WGPU + 6);
    std::array::from_fn(|at| cell(at).map_or("–", |text| *text).to_owned())
}

/// Compares a page with the existing file, or writes it if `GRADUS_WRITE` is set. Returns a description of what is
/// wrong, if anything is.
pub(crate) fn compare(page: &str, command: &str, text: &str) -> Option<String> {
    let path = root().join(page);
    if std::env::var_os("GRADUS_WRITE").is_some() {
        return std::fs::write(&path, text).err().map(|e| format!("{}: {e}", path.display()));
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    (old != text).then(|| format!("{page} is stale: run `cargo xtask {command}`"))
}

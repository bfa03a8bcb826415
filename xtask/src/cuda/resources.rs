//! What kernels take of a GPU: registers, shared memory, and spills, as `ptxas -v` counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::scope::Scope;

/// The GPUs that kernels are compiled for: Ampere, Hopper, Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// What the names of the kernels begin with that must not spill, and that the table has: matrix products, convolutions,
/// attention, and those over rows.
const STRICT: [&str; 6] = ["attention", "conv", "cross_entropy", "gemm", "normalize", "softmax"];

/// How many of the other kernels are compiled if not all are.
const SOME: usize = 60;
/// How many modules of each kernel that must not spill are compiled with [`Scope::Quick`].
const FEW: usize = 24;
/// The architecture for which modules are compiled with [`Scope::Quick`].
const ONE: &[&str] = &["sm_90a"];

const TABLE: &str = "xtask/src/cuda/resources.txt";
const HEAD: &str = "\
# The most that kernels take: name, architecture, registers of a thread, static shared memory of a block.
# `cargo xtask cuda --bless` writes it.
";

/// What one kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Use {
    registers: u32,
    shared: u32,
    spilled: u32,
}

/// The kernels of the table: the most that each takes on an architecture.
type Table = BTreeMap<(String, String), Use>;

/// Compiles the modules in a folder, and compares what they take with the table, or writes it. Returns what was checked, in
/// words.
pub(super) fn run(root: &Path, modules: &Path, ptxas: &Path, scope: Scope, bless: bool) -> Result<String, String> {
    let files = chosen(modules, scope)?;
    let architectures = if scope == Scope::Quick { ONE } else { &ARCHITECTURES };
    println!("== ptxas: {} modules for {}", files.len(), architectures.join(", "));
    let (mut found, mut kernels, mut spilling) = (Table::new(), BTreeSet::new(), BTreeSet::new());
    let mut wrong = Vec::new();
    for (at, kind, one) in compiled(&files, architectures, ptxas)? {
        kernels.insert(kind.clone());
        if one.spilled > 0 {
            spilling.insert(kind.clone());
        }
        if is_strict(&kind) {
            if one.spilled > 0 {
                let file = files[at.0].display();
                wrong.push(format!("{kind} spills {} bytes on {} ({file})", one.spilled, at.1));
            }
            let most = found.entry((kind, at.1.to_string())).or_default();
            most.registers = most.registers.max(one.registers);
            most.shared = most.shared.max(one.shared);
        }
    }
    let path = root.join(TABLE);
    if bless {
        std::fs::write(&path, text(&found)).map_err(|error| format!("{}: {error}", path.display()))?;
    } else {
        let table = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        compare(&found, &read(&table)?)?;
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n  "));
    }
    let (count, spills) = (kernels.len(), spilling.len());
    Ok(format!("{} modules of {count} names compile for {}, {spills} spill", files.len(), architectures.join(", ")))
}

fn is_strict(kernel: &str) -> bool {
    STRICT.iter().any(|start| kernel.starts_with(start))
}

/// The modules to compile: all, or those of the kernels that must not spill and some others. Their order, by which some are
/// chosen, is that of the hashes of their texts.
fn chosen(modules: &Path, scope: Scope) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", modules.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(modules).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "ptx") {
            files.push(path);
        }
    }
    files.sort();
    if scope == Scope::All {
        return Ok(files);
    }
    let (mut others, mut counts) = (0, BTreeMap::new());
    let most = if scope == Scope::Quick { FEW } else { usize::MAX };
    let mut kept = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let kernels =
            text.lines().filter_map(|line| line.split(".entry ").nth(1)).map(|kernel| kernel.trim_end_matches('('));
        let mut strict = kernels.filter(|kernel| is_strict(kernel)).peekable();
        let is_kept = if strict.peek().is_some() {
            // Not `any`, which would not count the kernels after the first one that is wanted.
            strict.fold(false, |wanted, kernel| {
                let count = counts.entry(kernel.to_string()).or_insert(0);
                *count += 1;
                wanted || *count <= most
            })
        } else {
            others += 1;
            others <= SOME
        };
        if is_kept {
            kept.push(file);
        }
    }
    Ok(kept)
}

/// The module's number, the architecture, the kernel's name, and what it takes.
type Line = ((usize, &'static str), String, Use);

/// Compiles all modules for all architectures, on all processors.
fn compiled(files: &[PathBuf], architectures: &[&'static str], ptxas: &Path) -> Result<Vec<Line>, String> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let jobs: Vec<(usize, &'static str)> =
        architectures.iter().flat_map(|architecture| (0..files.len()).map(move |at| (at, *architecture))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut lines = Vec::new();
        while let Some(&(at, architecture)) = jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            let said = compile(&files[at], ptxas, architecture)?;
            lines.extend(uses(&said).into_iter().map(|(kernel, one)| ((at, architecture), kernel, one)));
        }
        Ok::<_, String>(lines)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut lines = Vec::new();
        for one in all {
            lines.extend(one.join().map_err(|_| "a thread that runs ptxas panicked".to_string())??);
        }
        Ok(lines)
    })
}

/// What ptxas says of a module.
fn compile(file: &Path, ptxas: &Path, architecture: &str) -> Result<String, String> {
    let mut command = Command::new(ptxas);
    command.args(["-v", "-o", "/dev/null", &format!("-arch={architecture}")]).arg(file);
    let output = command.output().map_err(|error| format!("{}: {error}", ptxas.display()))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(said) } else { Err(format!("{} for {architecture}:\n{said}", file.display())) }
}

/// The kernels that ptxas speaks of, with what they take.
fn uses(said: &str) -> Vec<(String, Use)> {
    let mut all: Vec<(String, Use)> = Vec::new();
    let number = |text: &str, after: &str| -> u32 {
        let before = text.split(after).next().unwrap_or_default();
        before.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default()
    };
    for line in said.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            all.push((rest.split('\'').next().unwrap_or_default().into(), Use::default()));
        }
        let Some((_, last)) = all.last_mut() else { continue };
        if line.contains(" bytes spill stores") {
            last.spilled = number(line, " bytes spill stores") + number(line, " bytes spill loads");
        }
        if line.contains("Used ") {
            last.registers = number(line, " registers");
            last.shared = if line.contains(" bytes smem") { number(line, " bytes smem") } else { 0 };
        }
    }
    all
}

fn text(table: &Table) -> String {
    let mut text = HEAD.to_string();
    for ((kernel, architecture), most) in table {
        let _ = writeln!(text, "{kernel} {architecture} {} {}", most.registers, most.shared);
    }
    text
}

fn read(text: &str) -> Result<Table, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let (kernel, architecture) = (words.next()?.to_string(), words.next()?.to_string());
        let (registers, shared) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(((kernel, architecture), Use { registers, shared, spilled: 0 }))
    };
    lines.map(|line| entry(line).ok_or_else(|| format!("{TABLE}: `{line}`"))).collect()
}

/// Fails if a kernel takes more than the table says, or if one is not in it.
fn compare(found: &Table, table: &Table) -> Result<(), String> {
    let mut wrong = String::new();
    for ((kernel, architecture), now) in found {
        match table.get(&(kernel.clone(), architecture.clone())) {
            Some(most) if now.registers <= most.registers && now.shared <= most.shared => {}
            Some(most) => {
                let _ = writeln!(wrong, "{kernel} on {architecture} takes {now:?}, and may take {most:?}");
            }
            None => {
                let _ = writeln!(wrong, "{kernel} on {architecture} is not in the table; it takes {now:?}");
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong}see {TABLE}; `cargo xtask cuda --bless` writes it")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm' for 'sm_80'
ptxas info    : Function properties for gemm
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8192 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'add' for 'sm_80'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, 380 bytes cmem[0]
";

    #[test]
    fn what_ptxas_says_is_read() {
        let gemm = Use { registers: 40, shared: 8192, spilled: 16 };
        let add = Use { registers: 10, shared: 0, spilled: 0 };
        assert_eq!(uses(SAID), [("gemm".to_string(), gemm), ("add".to_string(), add)]);
    }

    #[test]
    fn a_kernel_that_takes_more_than_the_table_says_fails() {
        let table = read(&format!("{HEAD}gemm sm_80 40 8192\n")).unwrap();
        assert_eq!(read(&text(&table)).unwrap(), table);
        let with = |registers, shared| {
            let one = Use { registers, shared, spilled: 0 };
            compare(&Table::from([(("gemm".to_string(), "sm_80".to_string()), one)]), &table)
        };
        assert!(with(40, 8192).is_ok() && with(39, 0).is_ok());
        assert!(with(41, 8192).is_err() && with(40, 8193).is_err());
        assert!(compare(&table, &Table::new()).is_err());
        assert!(read("gemm sm_80 many 0").is_err());
    }
}

//! `train digits` over the stand-in, beside the CPU.

use std::path::Path;
use std::process::{Command, Stdio};

use super::scope::Scope;
use crate::workspace::done;

/// How far a loss may be from the CPU's, as a share of that.
const TOLERANCE: f64 = 1e-4;

/// Writes the first digits of the program's own as IDX files. Its arguments are the table, the folder, and how many digits
/// are for training and for the test.
const MAKE: &str = r#"
import gzip, struct, sys, pathlib
table, folder, *counts = sys.argv[1:]
rows = [bytes(map(int, line.split(','))) for line in gzip.open(table, 'rt')]
folder = pathlib.Path(folder)
folder.mkdir(parents=True, exist_ok=True)
for name, count in zip(('train', 't10k'), map(int, counts)):
    part, rows = rows[:count], rows[count:]
    images = b''.join(bytes(15 * v for v in row[:64]) for row in part)
    (folder / f'{name}-images-idx3-ubyte').write_bytes(struct.pack('>4I', 0x803, count, 8, 8) + images)
    (folder / f'{name}-labels-idx1-ubyte').write_bytes(struct.pack('>2I', 0x801, count) + bytes(row[64] for row in part))
"#;

/// Trains on some digits, or with [`Scope::All`] on all, on both devices, and compares the loss of each epoch and that of
/// the test. `gradus` makes the command, which finds the stand-in; `nccl` is what stands in
/// for NCCL.
pub(super) fn run(
    root: &Path,
    folder: &Path,
    python: &str,
    (scope, require): (Scope, bool),
    nccl: &Path,
    gradus: &dyn Fn() -> Command,
) -> Result<(), String> {
    let ([train, test], batch, epochs) = match scope {
        Scope::Quick => (["96", "32"], "32", "1"),
        Scope::Usual => (["160", "64"], "32", "2"),
        Scope::All => (["1437", "360"], "64", "1"),
    };
    let (data, table) = (folder.join("digits"), root.join("crates/gradus-data/data/digits.csv.gz"));
    done(Command::new(python).args(["-c", MAKE]).arg(table).arg(&data).args([train, test]), "the digits")?;
    let curve = |device: &str| {
        println!("== train digits --device {device}: {train} digits in batches of {batch}, epochs {epochs}");
        let out = folder.join(format!("trained-{device}"));
        let mut command = gradus();
        command.args(["train", "digits", "--json", "--force"]);
        command.args(["--device", device, "--epochs", epochs, "--batch-size", batch, "--data"]).arg(&data);
        let output = command.arg("--out").arg(&out).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("gradus: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("train digits --device {device}: {}\n{text}", output.status));
        }
        let metrics = out.join("metrics.csv");
        let metrics = std::fs::read_to_string(&metrics).map_err(|error| format!("{}: {error}", metrics.display()))?;
        let mut losses = epoch_losses(&metrics)?;
        losses.push(crate::digits::number(text.lines().last().unwrap_or_default(), "test_loss")?);
        Ok(losses)
    };
    let (cpu, cuda) = (curve("cpu")?, curve("cuda")?);
    println!("losses of epochs and test: {cpu:?} on the CPU, {cuda:?} on CUDA");
    near(&cpu, &cuda)?;
    on_ranks(&data, require, nccl, gradus)
}

/// A step on one rank with what stands in for NCCL, and on two without it, which exchange tensors through the host, beside
/// the CPU. What stands in connects devices of one process only, so that there are not two ranks with it.
fn on_ranks(data: &Path, require: bool, nccl: &Path, gradus: &dyn Fn() -> Command) -> Result<(), String> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        let m = "there is no mpirun to start ranks on CUDA with";
        if require {
            return Err(m.into());
        }
        println!("{m}: skipped");
        return Ok(());
    }
    let step = |ranks: &str, device: &str, nccl: &Path| {
        println!("== launch -n {ranks} -- train digits --device {device}, {}", nccl.display());
        let mut command = gradus();
        command.args(["launch", "-n", ranks, "--", "train", "digits", "--fast-dev-run", "--json"]);
        command.args(["--device", device, "--data"]).arg(data);
        let output = command.env("GRADUS_PTX_DEVICES", ranks).env("GRADUS_NCCL", nccl).output();
        let output = output.map_err(|error| format!("gradus: {error}"))?;
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if !output.status.success() {
            return Err(format!("{ranks} ranks on {device}: {}\n{out}{err}", output.status));
        }
        let loss = crate::digits::number(out.lines().last().unwrap_or_default(), "test_loss")?;
        Ok((loss, err.contains("NCCL cannot be used")))
    };
    let (cpu, _) = step("1", "cpu", nccl)?;
    for (ranks, library, is_without) in [("1", nccl, false), ("2", Path::new("/nowhere"), true)] {
        let (cuda, said) = step(ranks, "cuda", library)?;
        near(&[cpu], &[cuda])?;
        if said != is_without {
            return Err(format!("{ranks} ranks with NCCL {} use it: {said}", library.display()));
        }
    }
    Ok(())
}

/// The losses of the epochs, from the table of a run.
fn epoch_losses(metrics: &str) -> Result<Vec<f64>, String> {
    let mut lines = metrics.lines();
    let column = lines.next().and_then(|head| head.split(',').position(|name| name == "loss"));
    let loss = |line: &str| line.split(',').nth(column?)?.parse().ok();
    let losses: Option<Vec<f64>> = lines.map(loss).collect();
    losses.filter(|losses| !losses.is_empty()).ok_or_else(|| format!("no losses in the table of a run:\n{metrics}"))
}

/// Fails if the curves are not the same within the tolerance.
fn near(cpu: &[f64], cuda: &[f64]) -> Result<(), String> {
    // Not `> TOLERANCE`, which a loss that is no number would pass.
    let same = cpu.len() == cuda.len() && cpu.iter().zip(cuda).all(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs());
    if same { Ok(()) } else { Err(format!("train digits has the losses {cpu:?} on the CPU, and {cuda:?} on CUDA")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_and_compared() {
        assert_eq!(epoch_losses("epoch,loss,seconds\n1,2.5,9\n2,1.25,8\n"), Ok(vec![2.5, 1.25]));
        assert!(epoch_losses("epoch,seconds\n1,2\n").is_err() && epoch_losses("epoch,loss\n").is_err());
        assert!(near(&[2.0, 1.0], &[2.0001, 0.9999]).is_ok());
        assert!(near(&[2.0], &[2.001]).is_err() && near(&[2.0], &[]).is_err() && near(&[2.0], &[f64::NAN]).is_err());
    }
}

//! A user's compute module after compilation, and what its kernel declares.

use gradus_backend::{Error, Result};

use crate::driver::Function;

pub(crate) const OP: &str = "dispatch_compute";

/// A compiled module.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) function: Function,
    pub(crate) kernel: Declared,
}

/// What a kernel declares.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// The size of each parameter in bytes.
    pub(crate) parameters: Vec<usize>,
    /// The number of threads of a block.
    pub(crate) threads: [u32; 3],
}

/// What the kernel `entry` of a text of PTX declares.
pub(crate) fn declared(ptx: &str, entry: &str) -> Result<Declared> {
    let start = ptx.match_indices(entry).find(|(at, _)| {
        let (before, after) = (ptx[..*at].trim_end(), &ptx[at + entry.len()..]);
        before.ends_with(".entry") && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    });
    let Some((start, _)) = start else {
        return Err(Error::argument(OP, "the module has no kernel `main`")
            .help("declare it as extern \"C\" __global__ void __launch_bounds__(THREADS) main(..)"));
    };
    let head = ptx[start..].split('{').next().unwrap_or_default();
    let list = head.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let (list, after) = list.unwrap_or(("", head));
    let parameters = list.split(',').map(str::trim).filter(|p| !p.is_empty()).map(size).collect::<Result<_>>()?;
    let threads = [".maxntid", ".reqntid"].iter().find_map(|word| {
        let line = after.split_once(word)?.1.split(['.', '\n']).next()?;
        let mut sizes = line.split(',').map(|n| n.trim().parse::<u32>().ok());
        Some([sizes.next()??, sizes.next().flatten().unwrap_or(1), sizes.next().flatten().unwrap_or(1)])
    });
    let threads = threads.ok_or_else(|| {
        Error::argument(OP, "the kernel does not say how many threads a work-group has")
            .help("declare it with __launch_bounds__(THREADS), or in PTX with .reqntid")
    })?;
    Ok(Declared { parameters, threads })
}

/// The size in bytes of a parameter as PTX declares it: `.param .u32 name`, or `.param .align 8 .b8 name[16]`.
fn size(parameter: &str) -> Result<usize> {
    let unknown = || Error::argument(OP, format!("the kernel has a parameter of an unknown form: {parameter:?}"));
    let ty = parameter.split_whitespace().rev().nth(1).ok_or_else(unknown)?;
    let bits: usize = ty.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().map_err(|_| unknown())?;
    let count = match parameter.split_once('[') {
        Some((_, rest)) => rest.trim_end_matches(']').trim().parse().map_err(|_| unknown())?,
        None => 1,
    };
    Ok(bits / 8 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_threads_are_read_from_ptx() {
        let ptx = ".version 8.0\n.func main_helper(.param .b32 a)\n{ }\n.visible .entry gradus_main(\n\t.param .align 8 .b8 \
                   gradus_main_param_0[16],\n\t.param .align 8 .b8 gradus_main_param_1[24],\n\t.param .f32 \
                   gradus_main_param_2\n)\n.maxntid 64, 2, 1\n{\n}";
        let found = declared(ptx, "gradus_main").expect("a kernel");
        assert_eq!(found, Declared { parameters: vec![16, 24, 4], threads: [64, 2, 1] });
        assert!(declared(ptx, "main").is_err());
        assert!(declared(&ptx.replace(".maxntid 64, 2, 1", ""), "gradus_main").is_err());
    }
}

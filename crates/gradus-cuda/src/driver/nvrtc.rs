//! Compiles CUDA C with NVRTC.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use cudarc::nvrtc::sys;
use gradus_backend::{Error, ErrorKind, Result};

use super::library;

/// What a program is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code for GPUs of exactly this capability, with what only they have.
    Machine(u32),
    /// Text for GPUs of this capability and later ones, which the driver translates.
    Ptx(u32),
}

impl Target {
    /// The option of NVRTC that says this.
    fn option(self) -> String {
        // From 9.0 on, `a` permits what only GPUs of this capability have.
        let own = |capability: u32| if capability >= 90 { "a" } else { "" };
        match self {
            Target::Machine(c) => format!("--gpu-architecture=sm_{c}{}", own(c)),
            Target::Ptx(c) => {
                format!("--gpu-architecture=compute_{c}{}", if library::is_stand_in() { own(c) } else { "" })
            }
        }
    }
}

/// The options with which every program is compiled. Floating-point arithmetic is IEEE: nothing is contracted, and
/// divisions and square roots are rounded to nearest.
const OPTIONS: [&str; 7] = [
    "--std=c++17",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    "-lineinfo",
    "-default-device",
];

/// The version of NVRTC, and the capabilities that it knows.
#[derive(Debug)]
struct Compiler {
    version: (i32, i32),
    known: Vec<u32>,
}

fn compiler() -> Result<&'static Compiler> {
    static COMPILER: OnceLock<Result<Compiler>> = OnceLock::new();
    let made = COMPILER.get_or_init(|| {
        library::nvrtc()?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the functions write to these numbers.
        unsafe {
            check("its version", sys::nvrtcVersion(&mut major, &mut minor))?;
            check("its architectures", sys::nvrtcGetNumSupportedArchs(&mut count))?;
        }
        let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or_default()]; // at most some dozens
        // SAFETY: the list has as many elements as the function before has said.
        check("its architectures", unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) })?;
        Ok(Compiler { version: (major, minor), known: known.into_iter().filter_map(|n| n.try_into().ok()).collect() })
    });
    made.as_ref().map_err(Error::clone)
}

fn check(what: &str, code: sys::nvrtcResult) -> Result<()> {
    if code == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Backend, "cuda", format!("NVRTC fails at {what}: {code:?}")))
}

/// What to compile to for a GPU of this capability. NVRTC may be older than the GPU, in which case it makes text that
/// the driver translates.
pub(super) fn target(capability: u32) -> Result<Target> {
    let known = &compiler()?.known;
    if library::is_stand_in() {
        return Ok(Target::Ptx(capability));
    }
    if known.contains(&capability) {
        return Ok(Target::Machine(capability));
    }
    let before = known.iter().copied().filter(|&c| c <= capability).max();
    before.map(Target::Ptx).ok_or_else(|| {
        let m = format!("NVRTC compiles for no GPU as old as this one, of capability {}", shown(capability));
        Error::new(ErrorKind::Unsupported, "cuda", m).help("install the NVRTC of CUDA 12")
    })
}

/// A capability as it is written: `9.0`.
pub(crate) fn shown(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

/// Which declarations of CUDA's own a text finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declarations {
    /// Only those of the language, so that small kernels compile faster.
    Language,
    /// Those of the runtime's interface too.
    Runtime,
}

/// The options for a target.
fn options(target: Target, declarations: Declarations) -> Result<Vec<String>> {
    let minimal = declarations == Declarations::Language && compiler()?.version >= (12, 4);
    let minimal = minimal.then(|| "--minimal".to_owned());
    let common = OPTIONS.iter().map(|option| (*option).to_owned());
    Ok(common.chain(minimal).chain([target.option()]).collect())
}

/// Everything besides the text that the result of a compilation with [`Declarations::Language`] depends on.
pub(crate) fn fingerprint(target: Target) -> Result<String> {
    let version = compiler()?.version;
    Ok(format!("nvrtc {}.{} {}", version.0, version.1, options(target, Declarations::Language)?.join(" ")))
}

/// A program that NVRTC holds.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created and is not destroyed elsewhere.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Compiles a text. The error has the compiler's messages, and the text as a note.
pub(crate) fn compile(op: &str, name: &str, text: &str, target: Target, declarations: Declarations) -> Result<Vec<u8>> {
    let options = options(target, declarations)?;
    let refused = |why: &str| {
        let m = format!("its CUDA C does not compile: {why}");
        Error::new(ErrorKind::InvalidArgument, op, m).note(text.to_owned())
    };
    let source = CString::new(text).map_err(|_| refused("the text has a byte 0"))?;
    let file = CString::new(format!("{name}.cu")).map_err(|_| refused("the name has a byte 0"))?;
    let options: Vec<CString> = options.into_iter().filter_map(|option| CString::new(option).ok()).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: the strings end with 0 and outlive the program.
    check("a program", unsafe {
        sys::nvrtcCreateProgram(&mut program.0, source.as_ptr(), file.as_ptr(), 0, std::ptr::null(), std::ptr::null())
    })?;
    // SAFETY: the program exists, and there are as many pointers to strings as the call says.
    let code = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
    if code != sys::nvrtcResult::NVRTC_SUCCESS {
        let log = fetched(&program, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        return Err(refused(&if log.is_empty() { format!("{code:?}") } else { log }));
    }
    match target {
        Target::Machine(_) => fetched(&program, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Target::Ptx(_) => fetched(&program, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
}

type Size = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
type Get = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;

/// A result of a program: its size, then its bytes.
fn fetched(program: &Program, size: Size, get: Get) -> Result<Vec<u8>> {
    let mut bytes = 0;
    // SAFETY: the program exists, and the function writes to this number.
    check("the size of a result", unsafe { size(program.0, &mut bytes) })?;
    let mut made = gradus_backend::host_vec::vec_of::<u8>("cuda", bytes)?;
    made.resize(bytes, 0); // at most what the compiler made
    // SAFETY: the list has as many bytes as the function before has said.
    check("a result", unsafe { get(program.0, made.as_mut_ptr().cast()) })?;
    Ok(made)
}

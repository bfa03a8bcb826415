//! Compiled kernels: in memory by the hash of what their text is generated from, and on disk by the hash of the text,
//! the options and the architecture.
//!
//! A file of the cache is written aside and renamed, so that processes that share the cache see it whole. It begins
//! with the hash of its contents; a damaged file is compiled again. A cache that cannot be read or written costs time,
//! but nothing fails.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::{env, fs};

use gradus_backend::key::{KeyMap, key};
use gradus_backend::{ComputeModule, Result};

use crate::driver::{Declarations, Device, Function, compile, fingerprint};

/// The first bytes of a file of the cache.
const MAGIC: &[u8; 16] = b"gradus kernel 1\n";

/// The compiled kernels of one device.
#[derive(Debug)]
pub(crate) struct Programs {
    loaded: RwLock<KeyMap<Arc<Function>>>,
    folder: Option<PathBuf>,
    /// The number of kernels that NVRTC compiled.
    pub(crate) compiled: AtomicU64,
}

impl Programs {
    pub(crate) fn new() -> Programs {
        Programs { loaded: RwLock::default(), folder: folder(), compiled: AtomicU64::new(0) }
    }

    /// The kernel `entry` of a text. `key` is the hash of everything that the text depends on.
    pub(crate) fn get(
        &self,
        device: &Device,
        op: &str,
        (key, entry): (u128, &str),
        text: &dyn Fn() -> String,
    ) -> Result<Arc<Function>> {
        if let Some(found) = self.loaded.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(found.clone());
        }
        // Other threads go on meanwhile. If one of them makes the same kernel, the first result is kept.
        let function = Arc::new(self.make(device, op, entry, &text())?);
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        Ok(loaded.entry(key).or_insert(function).clone())
    }

    /// Compiles and loads a text, or loads what an earlier process compiled.
    pub(crate) fn make(&self, device: &Device, op: &str, entry: &str, text: &str) -> Result<Function> {
        let name = ComputeModule::Cuda(&format!("{}\n{text}", fingerprint(device.target)?)).hash().to_string();
        let path = self.folder.as_ref().map(|folder| folder.join(name));
        if let Some(image) = path.as_deref().and_then(read)
            && let Ok(function) = device.load(op, &image, entry)
        {
            return Ok(function);
        }
        let image = compile(op, entry, text, device.target, Declarations::Language)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let function = device.load(op, &image, entry)?;
        if let Some(path) = path {
            write(&path, &image);
        }
        Ok(function)
    }
}

/// The folder of the cache: `GRADUS_CUDA_CACHE`, or `gradus/cuda` in the user's folder for caches. `None` if
/// `GRADUS_CUDA_CACHE` is empty or the user has no such folder.
fn folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os("GRADUS_CUDA_CACHE") {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let of = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = of("XDG_CACHE_HOME").or_else(|| of("LOCALAPPDATA")).or_else(|| Some(of("HOME")?.join(".cache")))?;
    Some(home.join("gradus").join("cuda"))
}

/// The contents of a file of the cache, if they are whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let (head, image) = (bytes.get(..32)?, bytes.get(32..)?);
    let whole = head[..16] == *MAGIC && head[16..] == key(image).to_le_bytes();
    whole.then(|| bytes.split_off(32))
}

/// Writes a file of the cache. If that fails, there is none.
fn write(path: &Path, image: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = path.parent() else { return };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = folder.join(format!("new-{}-{number}", std::process::id()));
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = fs::File::create(&aside)?;
        file.write_all(MAGIC)?;
        file.write_all(&key(image).to_le_bytes())?;
        file.write_all(image)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_cache_is_whole_or_ignored() {
        let folder = env::temp_dir().join(format!("gradus-cuda-cache-{}", std::process::id()));
        let path = folder.join("kernel");
        assert_eq!(read(&path), None);
        write(&path, b"machine code");
        assert_eq!(read(&path).as_deref(), Some(&b"machine code"[..]));
        let whole = fs::read(&path).expect("the file");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("the file");
            assert_eq!(read(&path), None, "byte {at}");
            fs::write(&path, &whole[..at]).expect("the file");
            assert_eq!(read(&path), None, "cut at {at}");
        }
        fs::remove_dir_all(&folder).expect("the folder");
        // A folder that cannot be made: its parent is a file.
        let file = env::temp_dir().join(format!("gradus-cuda-file-{}", std::process::id()));
        fs::write(&file, b"").expect("a file");
        write(&file.join("folder").join("kernel"), b"machine code");
        fs::remove_file(&file).expect("the file");
    }
}

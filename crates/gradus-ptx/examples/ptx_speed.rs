//! How many instructions a second the interpreter executes: `cargo run --release -p gradus-ptx --example ptx_speed`.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use gradus_ptx::{Launch, Limits, Memory, Module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let module = Module::parse(include_str!("../tests/kernels/speed.ptx"))?;
    let memory = Memory::new();
    let n = 256u32;
    let count = n * n;
    let buffers: Vec<u64> = (0..3).map(|_| memory.alloc(u64::from(count) * 4)).collect::<Result<_, _>>()?;
    for at in &buffers {
        memory.fill(*at, &1.5f32.to_le_bytes(), u64::from(count) * 4)?;
    }
    let kernels = [
        ("gemm", [n / 64, n / 64, 1], 256, 3, n),
        ("gelu", [count / 4 / 256, 1, 1], 256, 2, count / 4),
        ("add_half", [count / 256, 1, 1], 256, 3, count),
    ];
    for races in [true, false] {
        for (kernel, grid, block, pointers, last) in kernels {
            let mut params: Vec<u8> = buffers[..pointers].iter().flat_map(|at| at.to_le_bytes()).collect();
            params.extend(last.to_le_bytes());
            let launch = Launch { grid, block: [block, 1, 1], shared_bytes: 0, params };
            let limits = Limits { races, threads: 1, ..Limits::default() };
            let (begin, start) = (Instant::now(), on_processor());
            let mut instructions = 0;
            while begin.elapsed().as_secs_f64() < 0.5 {
                instructions += gradus_ptx::run(&module, kernel, &launch, &memory, &limits)?.thread_instructions;
            }
            let seconds = on_processor().zip(start).map_or(begin.elapsed().as_secs_f64(), |(end, start)| end - start);
            let rate = instructions as f64 / seconds / 1e6;
            println!(
                "{kernel}, races {}: {rate:.0} million thread-instructions a second on one core",
                if races { "looked for" } else { "not looked for" }
            );
        }
    }
    Ok(())
}

/// The seconds that this thread was on a processor, where the system tells: other programs then do not count.
fn on_processor() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split(' ').next()?.parse().ok()?;
    Some(nanoseconds * 1e-9)
}

//! What the tests share: a memory with a module, and launches in one line.
#![allow(dead_code)]

pub(crate) mod apply;

use gradus_ptx::{Fault, Launch, Limits, Memory, Module, Stats};

/// A module with a memory of its own.
pub(crate) struct Device {
    pub(crate) memory: Memory,
    pub(crate) module: Module,
    pub(crate) limits: Limits,
}

/// A parameter.
pub(crate) enum Arg {
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

impl Device {
    pub(crate) fn new(text: &str) -> Self {
        let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
        Self { memory: Memory::new(), module, limits: Limits { steps: 10_000_000, ..Limits::default() } }
    }

    /// A module of one kernel `test` with this body. `params` are its parameters, such as `.u64 out`.
    pub(crate) fn kernel(params: &[&str], body: &str) -> Self {
        Self::new(&kernel(params, body))
    }

    pub(crate) fn upload<T: bytemuck::NoUninit>(&self, values: &[T]) -> u64 {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let at = self.memory.alloc(bytes.len() as u64).expect("there is room");
        self.memory.write(at, bytes).expect("it fits");
        at
    }

    pub(crate) fn alloc<T>(&self, count: usize) -> u64 {
        self.memory.alloc((count * size_of::<T>()) as u64).expect("there is room")
    }

    pub(crate) fn download<T: bytemuck::Pod>(&self, at: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); count];
        assert!(
            self.memory.is_written(at, (count * size_of::<T>()) as u64).expect("it is live"),
            "not all was written"
        );
        self.memory.read(at, bytemuck::cast_slice_mut(&mut values)).expect("it is live");
        values
    }

    pub(crate) fn run(&self, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Result<Stats, Fault> {
        self.run_with(kernel, [grid, 1, 1], [block, 1, 1], 0, args)
    }

    pub(crate) fn run_with(
        &self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<Stats, Fault> {
        let mut params = Vec::new();
        let known = self.module.kernel(kernel).expect("the kernel exists");
        for (arg, param) in args.iter().zip(&known.params) {
            params.resize(param.offset as usize, 0);
            match arg {
                Arg::U32(value) => params.extend(value.to_le_bytes()),
                Arg::U64(value) => params.extend(value.to_le_bytes()),
                Arg::F32(value) => params.extend(value.to_le_bytes()),
                Arg::F64(value) => params.extend(value.to_le_bytes()),
            }
        }
        let launch = Launch { grid, block, shared_bytes, params };
        gradus_ptx::run(&self.module, kernel, &launch, &self.memory, &self.limits)
    }
}

/// The text of a module of one kernel `test`.
pub(crate) fn kernel(params: &[&str], body: &str) -> String {
    let params: Vec<String> = params.iter().map(|param| format!("    .param {param}")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry test(\n{}\n)\n{{\n{REGISTERS}{body}\n    ret;\n}}\n",
        params.join(",\n")
    )
}

const REGISTERS: &str = "    .reg .pred %p<20>;\n    .reg .b16 %h<40>;\n    .reg .b32 %r<60>;\n    .reg .f32 %f<40>;\n    \
                         .reg .b64 %rd<40>;\n    .reg .f64 %fd<40>;\n";

//! The methods of [`Backend`](crate::Backend) as a list, for backends that forward them to another backend.

/// Passes the methods of one part of [`Backend`](crate::Backend) to a macro, as `name(argument: type, ..) -> type;`.
/// The parts are `memory` (the memory methods that can fail), `primitives` (the methods that a backend must have) and
/// `composites` (the composites and compute modules, which have default bodies).
///
/// A backend that wraps another one writes a single forwarding macro and so cannot miss a method. It writes by hand
/// only the methods that describe the backend itself: `info`, `name`, `supports` and `memory_stats`, and, where the
/// default does not fit, `unsupported`, `host_claim`, `prepares`, `run_prepared`, `offer`, `map_each`, `joins_load`,
/// `compute_limits`, `check_compute`, `register_native` and `allow_modules`.
///
/// ```
/// use gradus_backend::{Backend, BackendInfo, DType, MemoryStats};
///
/// #[derive(Debug)]
/// struct Same<B>(B);
///
/// macro_rules! pass_on {
///     ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
///         $(fn $name(&self, $($arg: $type),*) -> $result {
///             self.0.$name($($arg),*)
///         })*
///     };
/// }
///
/// impl<B: Backend> Backend for Same<B> {
///     fn info(&self) -> BackendInfo { self.0.info() }
///     fn name(&self) -> &str { self.0.name() }
///     fn supports(&self, dtype: DType) -> bool { self.0.supports(dtype) }
///     fn memory_stats(&self) -> MemoryStats { self.0.memory_stats() }
///     gradus_backend::backend_methods!(memory pass_on);
///     gradus_backend::backend_methods!(primitives pass_on);
///     gradus_backend::backend_methods!(composites pass_on);
/// }
/// ```
#[macro_export]
#[rustfmt::skip]
macro_rules! backend_methods {
    (memory $method:ident) => { $method! {
        alloc(bytes: usize) -> $crate::Result<$crate::Buffer>;
        upload(dst: &mut $crate::Buffer, offset: usize, bytes: &[u8]) -> $crate::Result<()>;
        download(src: &$crate::Buffer, offset: usize, bytes: &mut [u8]) -> $crate::Result<()>;
        copy_buffer(src: &$crate::Buffer, from: usize, dst: &mut $crate::Buffer, to: usize, bytes: usize) -> $crate::Result<()>;
        synchronize() -> $crate::Result<()>;
        set_memory_budget(bytes: Option<usize>) -> $crate::Result<()>;
        trim() -> $crate::Result<()>;
        renew(buffer: &mut $crate::Buffer) -> $crate::Result<()>;
    } };
    (primitives $method:ident) => { $method! {
        fill(y: &mut $crate::ViewMut<'_>, value: $crate::Scalar) -> $crate::Result<()>;
        copy_strided(x: $crate::View<'_>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        map(kernel: &$crate::Kernel, args: &[$crate::MapArg<'_>], outs: &mut [$crate::ViewMut<'_>]) -> $crate::Result<()>;
        reduce(op: $crate::ReduceOp, x: $crate::View<'_>, axes: $crate::Axes, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        arg_reduce(op: $crate::ArgReduceOp, x: $crate::View<'_>, axis: usize, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        scan(op: $crate::ScanOp, x: $crate::View<'_>, axis: usize, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        gemm(alpha: $crate::Scalar, a: $crate::View<'_>, b: $crate::View<'_>, beta: $crate::Scalar,
            c: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        unfold(window: &$crate::Window, x: $crate::View<'_>, pad: $crate::Scalar, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        fold(window: &$crate::Window, x: $crate::View<'_>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        gather(x: $crate::View<'_>, axis: usize, index: $crate::View<'_>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        scatter(op: $crate::ScatterOp, axis: usize, index: $crate::View<'_>, src: $crate::View<'_>,
            y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        sort(x: $crate::View<'_>, axis: usize, descending: bool, values: &mut $crate::ViewMut<'_>,
            indices: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        random(dist: $crate::Distribution, seed: u64, offset: u64, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
    } };
    (composites $method:ident) => { $method! {
        map_into(kernel: &$crate::Kernel, args: &[$crate::MapArg<'_>], shape: $crate::Shape, reader: $crate::Reader,
            y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        arange(start: i64, step: i64, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        gemm_i32(a: $crate::View<'_>, b: $crate::View<'_>, c: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        linear_i8(add: bool, x: $crate::View<'_>, w: $crate::View<'_>, sums: $crate::View<'_>, scale: $crate::View<'_>,
            bias: $crate::View<'_>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        conv(window: &$crate::Window, groups: usize, x: $crate::View<'_>, w: $crate::View<'_>,
            bias: Option<$crate::View<'_>>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        conv_backward_input(window: &$crate::Window, groups: usize, g: $crate::View<'_>, w: $crate::View<'_>,
            dx: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        conv_backward_weight(window: &$crate::Window, groups: usize, x: $crate::View<'_>, g: $crate::View<'_>,
            dw: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        max_pool(window: &$crate::Window, x: $crate::View<'_>, y: &mut $crate::ViewMut<'_>,
            indices: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        avg_pool(window: &$crate::Window, count_include_pad: bool, x: $crate::View<'_>,
            y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        avg_pool_backward(window: &$crate::Window, count_include_pad: bool, g: $crate::View<'_>,
            dx: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        softmax(log: bool, x: $crate::View<'_>, axis: usize, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        softmax_backward(log: bool, y: $crate::View<'_>, g: $crate::View<'_>, axis: usize,
            dx: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        normalize(rms: bool, axes: $crate::Axes, eps: f64, x: $crate::View<'_>, scale: Option<$crate::View<'_>>,
            shift: Option<$crate::View<'_>>, y: &mut $crate::ViewMut<'_>, mean: &mut $crate::ViewMut<'_>,
            rstd: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        normalize_backward(rms: bool, axes: $crate::Axes, g: $crate::View<'_>, x: $crate::View<'_>,
            scale: Option<$crate::View<'_>>, mean: $crate::View<'_>, rstd: $crate::View<'_>,
            dx: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        normalize_affine_backward(g: $crate::View<'_>, x: $crate::View<'_>, mean: $crate::View<'_>,
            rstd: $crate::View<'_>, dscale: &mut $crate::ViewMut<'_>,
            dshift: Option<&mut $crate::ViewMut<'_>>) -> $crate::Result<()>;
        attention(params: &$crate::AttentionParams, q: $crate::View<'_>, k: $crate::View<'_>, v: $crate::View<'_>,
            mask: Option<$crate::View<'_>>, y: &mut $crate::ViewMut<'_>, stats: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        attention_backward(params: &$crate::AttentionParams, q: $crate::View<'_>, k: $crate::View<'_>,
            v: $crate::View<'_>, mask: Option<$crate::View<'_>>, y: $crate::View<'_>, stats: $crate::View<'_>,
            g: $crate::View<'_>, dq: &mut $crate::ViewMut<'_>, dk: &mut $crate::ViewMut<'_>,
            dv: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        cross_entropy(params: &$crate::CrossEntropyParams, logits: $crate::View<'_>, target: $crate::View<'_>,
            loss: &mut $crate::ViewMut<'_>, lse: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        cross_entropy_backward(params: &$crate::CrossEntropyParams, logits: $crate::View<'_>, target: $crate::View<'_>,
            lse: $crate::View<'_>, g: $crate::View<'_>, dlogits: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        embedding(weight: $crate::View<'_>, index: $crate::View<'_>, y: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        embedding_backward(index: $crate::View<'_>, g: $crate::View<'_>, padding_index: Option<usize>,
            dw: &mut $crate::ViewMut<'_>) -> $crate::Result<()>;
        dispatch_compute(module: $crate::ComputeModule<'_>, bindings: &mut [$crate::Binding<'_>], constants: &[u8],
            groups: [u32; 3]) -> $crate::Result<()>;
    } };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// A method with a default body that is missing from the list would not be forwarded.
    #[test]
    fn the_list_has_every_method_that_computes_or_can_fail() {
        macro_rules! names {
            ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => { [$(stringify!($name)),*] };
        }
        let (memory, primitives, composites) =
            (backend_methods!(memory names), backend_methods!(primitives names), backend_methods!(composites names));
        let listed: BTreeSet<&str> = memory.into_iter().chain(primitives).chain(composites).collect();
        // The methods with which a backend describes itself.
        let own = [
            "info",
            "name",
            "supports",
            "unsupported",
            "as_watched",
            "memory_stats",
            "host_claim",
            "prepares",
            "run_prepared",
            "offer",
            "map_each",
            "joins_load",
        ];
        let modules = ["compute_limits", "check_compute", "register_native", "allow_modules"];
        let others: BTreeSet<&str> = own.into_iter().chain(modules).collect();
        let text = include_str!("backend.rs").split("pub trait Backend").nth(1).unwrap();
        let methods: BTreeSet<&str> = text.split("\n}\n").next().unwrap().split("\n    fn ").skip(1).collect();
        let methods: BTreeSet<&str> = methods.into_iter().map(|m| m.split('(').next().unwrap()).collect();
        assert_eq!(methods, listed.union(&others).copied().collect());
    }
}

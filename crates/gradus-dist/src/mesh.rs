//! [`Mesh`]: ranks arranged along several axes, one for each kind of parallelism.

use std::panic::Location;
use std::sync::Arc;

use gradus_tensor::{Error, Here, Result};

use crate::communicator::Communicator;
use crate::group::Line;

const OP: &str = "mesh";

/// Ranks arranged along named axes. The last axis varies fastest: of `[("data", 2), ("tensor", 2)]`, ranks 0 and 1 are
/// neighbours along `tensor`, and ranks 0 and 2 along `data`.
///
/// The communicator of an axis connects the ranks that differ only in their place on it, numbered by that place.
/// [`DataParallel`](crate::DataParallel) and [`ShardedOptimizer`](crate::ShardedOptimizer) take that of one axis, and
/// divided layers, such as [`ColumnLinear`](crate::ColumnLinear), that of another:
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{ColumnLinear, DataParallel, Mesh, Options, RowLinear, threads};
/// use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
///
/// #[derive(Module)]
/// struct Mlp {
///     first: ColumnLinear,
///     second: RowLinear,
/// }
///
/// threads(4, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
///     assert_eq!(comm.rank(), 2 * mesh.coordinate("data")? + mesh.coordinate("tensor")?);
///
///     // The same weights on all ranks, of which each keeps a part.
///     let mut generator = Generator::new(7);
///     let mut init = Init::new(DType::F32, &device, &mut generator);
///     let tensor = mesh.axis("tensor")?;
///     let first = ColumnLinear::of(&Linear::new(3, 8, &mut init)?, &tensor)?;
///     let model = Mlp { first, second: RowLinear::of(&Linear::new(8, 1, &mut init)?, &tensor)? };
///
///     let x = Tensor::randn([64, 3], DType::F32, &device, &mut generator)?;
///     let parallel = DataParallel::new(mesh.axis("data")?)?;
///     let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig::default())?;
///     let (_loss, gradients) = parallel.backward(&model, 64, |rows| {
///         let x = x.narrow(0, rows.start, rows.len())?;
///         model.second.forward(&model.first.forward(&x)?.relu()?)?.square()?.mean_all()
///     })?;
///     optimizer.step(&gradients)
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Mesh {
    axes: Vec<Axis>,
}

#[derive(Debug, Clone)]
struct Axis {
    name: String,
    coordinate: usize,
    comm: Arc<dyn Communicator>,
}

impl Mesh {
    /// Arranges the ranks of `comm` along axes with these names and sizes. All ranks call it with the same axes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if the product of the sizes is not the
    /// number of ranks, if two axes have one name, and, on all ranks, if their axes differ. Those of the communicator.
    #[track_caller]
    pub fn new<S: AsRef<str>>(
        comm: &Arc<dyn Communicator>,
        axes: impl IntoIterator<Item = (S, usize)>,
    ) -> Result<Self> {
        let line = Location::caller();
        let axes: Vec<(String, usize)> =
            axes.into_iter().map(|(name, size)| (name.as_ref().to_owned(), size)).collect();
        agree(&**comm, &axes, line)?;
        check(comm.size(), &axes).here()?;
        let mut stride = comm.size();
        let made = axes.into_iter().map(|(name, size)| {
            stride /= size;
            let coordinate = comm.rank() / stride % size;
            // The lowest of the ranks that differ only on this axis.
            let first = comm.rank() - coordinate * stride;
            let color = u32::try_from(first).map_err(|_| Error::argument(OP, "more ranks than u32 can count"))?;
            Ok(Axis { name, coordinate, comm: comm.split_by(color, coordinate as i64, line)? })
        });
        Ok(Mesh { axes: made.collect::<Result<_>>().here()? })
    }

    /// The communicator of the ranks along an axis.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if there is no axis of this name.
    #[track_caller]
    pub fn axis(&self, name: &str) -> Result<Arc<dyn Communicator>> {
        Ok(self.find(name)?.comm.clone())
    }

    /// The place of this rank on an axis, from 0.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if there is no axis of this name.
    #[track_caller]
    pub fn coordinate(&self, name: &str) -> Result<usize> {
        Ok(self.find(name)?.coordinate)
    }

    #[track_caller]
    fn find(&self, name: &str) -> Result<&Axis> {
        if let Some(axis) = self.axes.iter().find(|axis| axis.name == name) {
            return Ok(axis);
        }
        let names: Vec<&str> = self.axes.iter().map(|axis| &*axis.name).collect();
        let e = Error::argument(OP, format!("there is no axis `{name}`"));
        let all = format!("the axes are {}", names.join(", "));
        // The name that begins most like this one.
        let alike =
            |other: &&str| other.chars().zip(name.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
        Err(match names.iter().max_by_key(|other| alike(other)) {
            Some(nearest) if alike(nearest) > 0 => e.help(format!("did you mean `{nearest}`? {all}")),
            _ => e.help(all),
        })
    }
}

/// Fails on all ranks unless all give the same axes.
fn agree(comm: &dyn Communicator, axes: &[(String, usize)], line: Line) -> Result<()> {
    // FNV-1a
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in format!("{axes:?}").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    if comm.agrees(&[hash], line)? {
        return Ok(());
    }
    let m = format!("ranks give different axes; those of rank {} are {}", comm.rank(), written(axes));
    Err(Error::argument(OP, m).at(line).help("give all ranks the same names and sizes in the same order"))
}

/// `data 2, tensor 2`
fn written(axes: &[(String, usize)]) -> String {
    let axes: Vec<String> = axes.iter().map(|(name, size)| format!("{name} {size}")).collect();
    if axes.is_empty() { "none".into() } else { axes.join(", ") }
}

#[track_caller]
fn check(ranks: usize, axes: &[(String, usize)]) -> Result<()> {
    if let Some((i, (name, _))) = axes.iter().enumerate().find(|(i, axis)| axes[..*i].iter().any(|a| a.0 == axis.0)) {
        return Err(Error::argument(OP, format!("axis {i} is called `{name}`, as one before it is")));
    }
    let product = axes.iter().try_fold(1usize, |product, (_, size)| product.checked_mul(*size));
    if product == Some(ranks) {
        return Ok(());
    }
    let product = product.map_or_else(|| "more than can be counted".into(), |product| product.to_string());
    let m = format!("the sizes of the axes ({}) make {product} places for {ranks} ranks", written(axes));
    Err(Error::argument(OP, m).help("the product of the sizes is the number of ranks; an axis may have size 1"))
}

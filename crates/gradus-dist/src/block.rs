//! [`Block`]: parameters that are divided among the ranks as one vector, and how a model is cut into blocks.

use gradus_nn::{Module, Parameter, StateDict};
use gradus_tensor::{DType, Error, Result, Tensor};

use crate::data_parallel::{DataParallel, trained};
use crate::vectors::{Named, joined, pad};

/// Parameters of one dtype, joined to a vector that is cut into as many parts as there are ranks. The vector is padded to
/// a multiple of the number of shards, so that it has the same length for any number of ranks.
#[derive(Debug)]
pub(crate) struct Block {
    /// The name of the part, as the optimiser knows it.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) parameters: Vec<Named>,
    /// The elements of all ranks, with padding.
    pub(crate) padded: usize,
    /// The part of this rank.
    pub(crate) part: Parameter,
}

impl Block {
    fn new(name: &str, dtype: DType, parameters: Vec<Named>, parallel: &DataParallel) -> Result<Block> {
        let (rank, ranks) = (parallel.communicator().rank(), parallel.communicator().size());
        let vector = vector(parameters.iter().map(|(_, p)| p.values()), parallel.all_shards())?;
        let each = vector.numel() / ranks;
        let part = Parameter::new(vector.narrow(0, rank * each, each)?.copy()?)?;
        // The parameters of the model itself have no name in common. A field has none of their names.
        let name = parameters.first().map(|(first, _)| first.as_str()).filter(|_| name.is_empty()).unwrap_or(name);
        Ok(Block { name: format!("{name}.{dtype}"), dtype, parameters, padded: vector.numel(), part })
    }

    /// Blocks of these parameters, one for each dtype.
    pub(crate) fn of(name: &str, parameters: &[Named], parallel: &DataParallel) -> Result<Vec<Block>> {
        let mut dtypes: Vec<DType> = parameters.iter().map(|(_, p)| p.dtype()).collect();
        dtypes.sort();
        dtypes.dedup();
        let block = |dtype| {
            let own = parameters.iter().filter(|(_, p)| p.dtype() == dtype).cloned().collect();
            Block::new(name, dtype, own, parallel)
        };
        dtypes.into_iter().map(block).collect()
    }

    /// How often this rank's part was written.
    pub(crate) fn version(&self) -> u64 {
        self.part.values().storage().version()
    }

    /// The first element of each parameter in the vector.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> + use<'_> {
        self.parameters.iter().scan(0, |at, (_, p)| Some(std::mem::replace(at, *at + p.numel())))
    }

    /// The pieces of a vector of this block, one for each parameter, in its shape.
    pub(crate) fn cut(&self, vector: &Tensor) -> impl Iterator<Item = Result<(&Named, Tensor)>> + use<'_> {
        let vector = vector.clone();
        self.parameters.iter().zip(self.offsets()).map(move |(named, at)| {
            let piece = vector.narrow(0, at, named.1.numel())?.reshape(named.1.shape())?;
            Ok((named, piece))
        })
    }

    /// The part of a rank of the vector of these tensors, one for each parameter.
    pub(crate) fn part_of<'a>(
        &self,
        tensors: impl Iterator<Item = &'a Tensor>,
        parallel: &DataParallel,
    ) -> Result<Tensor> {
        let each = self.part.numel();
        vector(tensors, parallel.all_shards())?.narrow(0, parallel.communicator().rank() * each, each)
    }

    /// Adds the entries of the state of this rank's part to `whole`, as those of the parameters: `gather` gives the
    /// vector of all ranks.
    pub(crate) fn give_state(
        &self,
        state: &StateDict,
        whole: &mut StateDict,
        gather: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        for slot in slots(state, &self.name) {
            let Some(tensor) = state.get(&format!("{}.{slot}", self.name)) else { continue };
            let vector = if tensor.shape() == self.part.shape() { Some(gather(tensor)?) } else { None };
            for ((name, parameter), at) in self.parameters.iter().zip(self.offsets()) {
                let piece = match &vector {
                    Some(vector) => vector.narrow(0, at, parameter.numel())?.reshape(parameter.shape())?.copy()?,
                    None => tensor.copy()?,
                };
                whole.insert(format!("{name}.{slot}"), piece);
            }
        }
        if let Some(steps) = state.metadata(&steps_of(&self.name)) {
            self.parameters.iter().for_each(|(name, _)| whole.set_metadata(steps_of(name), steps));
        }
        Ok(())
    }

    /// Moves the entries of this block's parameters in `whole` to the state of this rank's part.
    pub(crate) fn take_state(
        &self,
        whole: &mut StateDict,
        state: &mut StateDict,
        parallel: &DataParallel,
    ) -> Result<()> {
        let Some((first, parameter)) = self.parameters.first() else { return Ok(()) };
        for slot in slots(whole, first) {
            let taken = self.parameters.iter().map(|(name, _)| whole.remove(&format!("{name}.{slot}")));
            let Some(tensors) = taken.collect::<Option<Vec<_>>>() else {
                let m = format!("the state has {first}.{slot}, but not that of all parameters beside it");
                return Err(
                    Error::argument("load_state_dict", m).help("they were stepped together: take the whole state")
                );
            };
            let fits = |(tensor, (_, p)): (&Tensor, &Named)| tensor.shape() == p.shape();
            let part = if tensors.iter().zip(&self.parameters).all(fits) {
                self.part_of(tensors.iter(), parallel)?.copy()?
            } else if tensors[0].shape() != parameter.shape() {
                tensors[0].clone()
            } else {
                let m = format!("{slot} of the parameters beside {first} has other shapes than the parameters");
                return Err(Error::shape("load_state_dict", m));
            };
            state.insert(format!("{}.{slot}", self.name), part);
        }
        let steps = whole.metadata(&steps_of(first)).map(str::to_owned);
        if let Some((other, _)) =
            self.parameters.iter().find(|(name, _)| whole.metadata(&steps_of(name)) != steps.as_deref())
        {
            let m = format!("{first} and {other} were not stepped equally often, and are stepped together here");
            return Err(Error::argument("load_state_dict", m));
        }
        if let Some(steps) = steps {
            state.set_metadata(steps_of(&self.name), steps);
        }
        Ok(())
    }
}

/// Fails unless the parameters of the model that are trained are those of the blocks.
pub(crate) fn check_model(blocks: &[Block], model: &(impl Module + ?Sized)) -> Result<()> {
    let own: Vec<&Named> = blocks.iter().flat_map(|block| &block.parameters).collect();
    let now = trained(model);
    let is_own = |p: &Parameter| own.iter().any(|(_, other)| other.is_same(p));
    if now.len() == own.len() && now.iter().all(|(_, p)| is_own(p)) {
        return Ok(());
    }
    let m = format!(
        "the model has {} parameters that are trained, and what is divided was made for others: {}",
        now.len(),
        own.len()
    );
    let e = Error::argument("sharded_optimizer", m);
    Err(e.help("freeze and unfreeze parameters before the optimiser is made, or before Trainer::fit"))
}

/// The key of the metadata under which a state has the number of steps of a parameter.
pub(crate) fn steps_of(name: &str) -> String {
    format!("steps.{name}")
}

/// The names of the entries of a state that belong to the parameter `name`.
fn slots(state: &StateDict, name: &str) -> Vec<String> {
    let of =
        |(key, _): (&str, &Tensor)| key.rsplit_once('.').filter(|(of, _)| *of == name).map(|(_, slot)| slot.to_owned());
    state.iter().filter_map(of).collect()
}

/// Tensors of one dtype as one vector, padded to a multiple of `shards`.
fn vector<'a>(tensors: impl Iterator<Item = &'a Tensor>, shards: usize) -> Result<Tensor> {
    let flat = |t: &Tensor| Ok((t.dtype(), t.detach().reshape([t.numel()])?));
    let mut pieces = tensors.map(flat).collect::<Result<Vec<_>>>()?;
    pad(&mut pieces, shards)?;
    let mut vectors = joined(&pieces)?.into_iter();
    match (vectors.next(), vectors.next()) {
        (Some((_, vector)), None) => Ok(vector),
        _ => Err(Error::argument("sharded_optimizer", "tensors that are joined have one dtype")),
    }
}

/// The parameters of a model, cut into blocks with a name: what lies below the same first number in the names, such as
/// `h.0`, and a layer elsewhere. A block with more than half of all elements is cut at the next number. Then neighbours
/// are joined that are together no larger than the largest.
pub(crate) fn blocks_of(parameters: &[Named]) -> Vec<(String, Vec<Named>)> {
    let all = elements(parameters);
    let mut blocks = grouped(parameters, 1);
    for numbers in 2.. {
        let Some(large) = blocks.iter().position(|(_, own)| 2 * elements(own) > all) else {
            break;
        };
        let pieces = grouped(&blocks[large].1, numbers);
        let deepest = blocks[large].1.iter().map(|(name, _)| numbers_in(name)).max().unwrap_or(0);
        if numbers > deepest {
            break;
        }
        blocks.splice(large..=large, pieces);
    }
    let largest = blocks.iter().map(|(_, own)| elements(own)).max().unwrap_or(0);
    let mut joined: Vec<(String, Vec<Named>)> = vec![];
    for (name, own) in blocks {
        match joined.last_mut() {
            Some((_, before)) if elements(before) + elements(&own) <= largest => before.extend(own),
            _ => joined.push((name, own)),
        }
    }
    joined
}

fn elements(parameters: &[Named]) -> usize {
    parameters.iter().map(|(_, p)| p.numel()).sum()
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

fn numbers_in(name: &str) -> usize {
    name.split('.').filter(|word| is_number(word)).count()
}

/// Groups parameters by their names up to number `numbers` in them, or by their layers where there are fewer.
fn grouped(parameters: &[Named], numbers: usize) -> Vec<(String, Vec<Named>)> {
    let mut groups: Vec<(String, Vec<Named>)> = vec![];
    for (name, parameter) in parameters {
        let words: Vec<&str> = name.split('.').collect();
        let number = words.iter().enumerate().filter(|(_, word)| is_number(word)).nth(numbers - 1);
        let end = number.map_or(words.len() - 1, |(i, _)| i + 1);
        let block = words[..end].join(".");
        let named = (name.clone(), parameter.clone());
        match groups.iter_mut().find(|(other, _)| *other == block) {
            Some((_, own)) => own.push(named),
            None => groups.push((block, vec![named])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_tensor::Device;

    use super::*;

    #[test]
    fn blocks_are_what_lies_below_a_number() {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let named = |(name, n): &(&str, usize)| {
            let tensor = Tensor::zeros([*n], DType::F32, &device).unwrap();
            ((*name).to_owned(), Parameter::new(tensor).unwrap())
        };
        let cut = |parameters: &[(&str, usize)]| -> Vec<(String, usize)> {
            let all: Vec<Named> = parameters.iter().map(named).collect();
            blocks_of(&all).into_iter().map(|(name, own)| (name, own.len())).collect()
        };
        let expect = |pairs: &[(&str, usize)]| -> Vec<(String, usize)> {
            pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        let gpt =
            [("wte.weight", 9), ("h.0.attn.weight", 5), ("h.0.mlp.bias", 5), ("h.1.mlp.weight", 9), ("ln_f.bias", 1)];
        assert_eq!(cut(&gpt), expect(&[("wte", 1), ("h.0", 2), ("h.1", 2)]));
        // A model inside of another one: the block with nearly all elements is cut again.
        let inside = [("0.h.0.weight", 9), ("0.h.0.bias", 1), ("0.h.1.weight", 9), ("0.end.weight", 2), ("1.bias", 1)];
        assert_eq!(cut(&inside), expect(&[("0.h.0", 2), ("0.h.1", 1), ("0.end", 2)]));
        assert_eq!(cut(&[("weight", 6), ("bias", 2)]), expect(&[("", 2)]));
        assert_eq!(cut(&[("0.weight", 6), ("0.bias", 1), ("2.weight", 1)]), expect(&[("0", 2), ("2", 1)]));
    }
}

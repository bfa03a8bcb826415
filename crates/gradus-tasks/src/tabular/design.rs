//! [`Design`]: the kind and size of a network for tables.

use gradus_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// The largest width and depth of a network that a file may ask for.
const MOST_WIDTH: usize = 1 << 14;
const MOST_DEPTH: usize = 256;

/// The kind and size of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Design {
    /// Linear layers with ReLU and dropout between them. Categories are one-hot features.
    Mlp {
        /// The width of each hidden layer.
        hidden: Vec<usize>,
        /// The probability of dropping a feature after each hidden layer.
        dropout: f64,
    },
    /// A transformer over the columns (Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data", 2021), with
    /// PyTorch's encoder layers.
    FtTransformer {
        /// The width of a column's token.
        width: usize,
        /// The number of layers.
        layers: usize,
        /// The number of attention heads, which divides the width.
        heads: usize,
        /// The probability of dropping an attention weight or a feature.
        dropout: f64,
    },
}

impl Design {
    /// The default MLP: two hidden layers of 128 features.
    pub fn mlp() -> Design {
        Design::Mlp { hidden: vec![128, 128], dropout: 0.2 }
    }

    /// The default FT-transformer: 2 layers of width 64 with 4 heads.
    pub fn ft_transformer() -> Design {
        Design::FtTransformer { width: 64, layers: 2, heads: 4, dropout: 0.1 }
    }

    /// Whether categories are one-hot features, and not indices into embeddings.
    pub(super) fn is_one_hot(&self) -> bool {
        matches!(self, Design::Mlp { .. })
    }

    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        let (widths, depth) = match self {
            Design::Mlp { hidden, .. } => (hidden.clone(), hidden.len()),
            Design::FtTransformer { width, layers, .. } => (vec![*width], *layers),
        };
        let fits = widths.iter().all(|width| (1..=MOST_WIDTH).contains(width)) && (1..=MOST_DEPTH).contains(&depth);
        if fits {
            return Ok(());
        }
        let m = format!("a network of {depth} layers of the widths {widths:?}");
        Err(Error::argument("tabular", m).help(format!("use 1 to {MOST_DEPTH} layers of 1 to {MOST_WIDTH} features")))
    }
}

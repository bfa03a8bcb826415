//! How models are divided among ranks. Each rank has some heads of attention, some features between the two linear layers of
//! a block, and some tokens of the vocabulary.

use gradus_nn::Split;

use crate::{Bert, Gpt2, Llama, ViT};

impl Gpt2 {
    /// The plan by which `gradus::dist::divide` divides this model, and its [parts](Gpt2::part), among ranks. The logits are
    /// those of all tokens, on all ranks.
    pub const TENSOR_PARALLEL: &[(&str, Split)] = &[
        ("wte.weight", Split::Vocabulary),
        ("lm_head.weight", Split::Vocabulary),
        ("attn.c_attn.weight", Split::Blocks(1, 3)),
        ("attn.c_attn.bias", Split::Blocks(0, 3)),
        ("attn.c_proj.weight", Split::Axis(0)),
        ("attn.heads.random", Split::Random),
        ("mlp.c_fc.weight", Split::Axis(1)),
        ("mlp.c_fc.bias", Split::Axis(0)),
        ("mlp.c_proj.weight", Split::Axis(0)),
    ];
}

impl Bert {
    /// The plan by which `gradus::dist::divide` divides this model among ranks, also inside of another one.
    pub const TENSOR_PARALLEL: &[(&str, Split)] = &[
        ("word_embeddings.weight", Split::Vocabulary),
        ("self.query.weight", Split::Axis(0)),
        ("self.query.bias", Split::Axis(0)),
        ("self.key.weight", Split::Axis(0)),
        ("self.key.bias", Split::Axis(0)),
        ("self.value.weight", Split::Axis(0)),
        ("self.value.bias", Split::Axis(0)),
        ("self.heads.random", Split::Random),
        ("intermediate.dense.weight", Split::Axis(0)),
        ("intermediate.dense.bias", Split::Axis(0)),
        ("output.dense.weight", Split::Axis(1)),
    ];
}

impl ViT {
    /// The plan by which `gradus::dist::divide` divides this model among ranks.
    pub const TENSOR_PARALLEL: &[(&str, Split)] = &[
        ("attn.qkv.weight", Split::Blocks(0, 3)),
        ("attn.qkv.bias", Split::Blocks(0, 3)),
        ("attn.proj.weight", Split::Axis(1)),
        ("attn.heads.random", Split::Random),
        ("mlp.fc1.weight", Split::Axis(0)),
        ("mlp.fc1.bias", Split::Axis(0)),
        ("mlp.drop1.random", Split::Random),
        ("mlp.fc2.weight", Split::Axis(1)),
    ];
}

impl Llama {
    /// The plan by which `gradus::dist::divide` divides this model among ranks. The logits are those of all tokens, on all
    /// ranks.
    pub const TENSOR_PARALLEL: &[(&str, Split)] = &[
        ("embed_tokens.weight", Split::Vocabulary),
        ("lm_head.weight", Split::Vocabulary),
        ("q_proj.weight", Split::Axis(0)),
        ("q_proj.bias", Split::Axis(0)),
        ("k_proj.weight", Split::Axis(0)),
        ("k_proj.bias", Split::Axis(0)),
        ("v_proj.weight", Split::Axis(0)),
        ("v_proj.bias", Split::Axis(0)),
        ("o_proj.weight", Split::Axis(1)),
        ("self_attn.heads.random", Split::Random),
        ("gate_proj.weight", Split::Axis(0)),
        ("gate_proj.bias", Split::Axis(0)),
        ("up_proj.weight", Split::Axis(0)),
        ("up_proj.bias", Split::Axis(0)),
        ("down_proj.weight", Split::Axis(1)),
    ];
}

//! The lines of `docs/book/src/from-pytorch.md` on known networks.

use gradus::models::*;
use gradus::prelude::*;

use super::setup;

#[test]
fn images() -> Result<()> {
    let (device, mut rng) = setup()?;
    // Nothing here depends on the weights.
    let mut init = Init::new(DType::F32, &device, &mut rng).skip();
    assert_eq!(ResNet::resnet18(10, 3, &mut init)?.fc.weight.shape(), [10, 512]);
    let small = MobileNetV3::small(1000, 3, &mut init)?;
    let second = MobileNetV2::new(MobileNetV2Config::default(), &mut init)?;
    let x = Tensor::zeros([2, 3, 32, 32], DType::F32, &device)?;
    assert_eq!((small.forward(&x)?.shape(), second.forward(&x)?.shape()), (&[2, 1000][..], &[2, 1000][..]));
    assert_eq!(ConvNeXt::tiny(1000, 3, &mut init)?.num_parameters(), 28_589_128);
    assert_eq!(ViT::tiny(1000, 3, &mut init)?.num_parameters(), 5_717_416);
    let config = ViTConfig { image_size: [32, 32], num_classes: 10, ..ViTConfig::tiny() };
    assert_eq!(ViT::new(config, &mut init)?.forward(&x)?.shape(), [2, 10]);
    Ok(())
}

#[test]
fn texts() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng).skip();
    let tokens = Tensor::from_vec(vec![5i64, 8, 9, 1], [1, 4], &device)?;
    let (mask, answer) = (tokens.ne(0)?, tokens.narrow(1, 0, 2)?);
    let bert = Bert::new(BertConfig { num_hidden_layers: 1, ..BertConfig::minilm() }, &mut init)?;
    assert_eq!(bert.encode(&tokens, Some(&mask), None)?.shape(), [1, 4, 384]);
    let classifier = BertForSequenceClassification::new(*bert.config(), 2, &mut init)?;
    assert_eq!(classifier.forward(&tokens)?.shape(), [1, 2]);
    let gpt = Gpt2::new(Gpt2Config { n_layer: 1, ..Gpt2Config::default() }, &mut init)?;
    assert_eq!(gpt.forward(&tokens)?.shape(), [1, 4, 50257]);
    let config = LlamaConfig { hidden_size: 64, num_hidden_layers: 2, ..LlamaConfig::default() };
    let mut llama = Llama::new(config, &mut init)?;
    let options = GenerateOptions { max_new_tokens: 3, sampling: Sampling::greedy(), ..GenerateOptions::default() };
    let mut count = 0;
    for token in generate(&mut llama, &[1, 5, 7], &device, options)? {
        count += usize::from((0..32_000).contains(&token?));
    }
    assert_eq!(count, 3);
    let t5 = T5::new(T5Config { num_layers: 1, ..T5Config::default() }, &mut init)?;
    assert_eq!(t5.logits(&tokens, Some(&mask), &answer)?.shape(), [1, 2, 32128]);
    Ok(())
}

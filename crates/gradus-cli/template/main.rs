//! Trains a small network on handwritten digits, tests it, and saves it. Make it your own: the data, the network, the
//! training.

use gradus::data::{digits, split};
use gradus::prelude::*;

/// The network: one hidden layer.
#[derive(Module)]
struct Net {
    hidden: Linear,
    dropout: Dropout,
    output: Linear,
}

impl Net {
    /// A network with new random weights.
    fn new(device: &Device, seed: u64) -> Result<Net> {
        let mut generator = Generator::new(seed);
        let dropout = Dropout::new(0.2, &mut generator)?;
        let mut init = Init::new(DType::F32, device, &mut generator);
        Ok(Net { hidden: Linear::new(64, 128, &mut init)?, dropout, output: Linear::new(128, 10, &mut init)? })
    }
}

impl Forward for Net {
    /// Images `[n, 1, 8, 8]` become a score for each digit, `[n, 10]`.
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.hidden.forward(&x.flatten(1, -1)?)?.relu()?;
        self.output.forward(&self.dropout.forward(&x)?)
    }
}

/// Trains a network. Returns it with its accuracy on the fifth of the images that it has not seen.
fn train(epochs: usize, device: &Device) -> Result<(Net, f64)> {
    let seed = 0;
    let all = digits::load()?;
    let parts = split::stratified(all.labels(), 0.2, seed)?;
    let all = std::sync::Arc::new(all);
    let training = DataLoader::new(all.clone().subset(parts.train)?, device).batch_size(32).shuffle(seed).build()?;
    let test = DataLoader::new(all.subset(parts.test)?, device).batch_size(256).build()?;

    let mut net = Net::new(device, seed)?;
    let mut optimizer = AdamW::new(net.named_parameters(), AdamConfig { lr: 3e-3, ..Default::default() })?;
    let task = Classification::default();
    Trainer::new(epochs)?.fit(&mut net, &mut optimizer, &training, None, &task, &mut [])?;
    let result = evaluate(&mut net, &test, &task)?;
    Ok((net, result.accuracy.unwrap_or(0.0)))
}

fn main() -> Result<()> {
    let device = Device::cpu()?;
    let (net, accuracy) = train(15, &device)?;
    println!("{:.1} % of the digits that were held out are recognised", accuracy * 100.0);
    net.state_dict()?.save_safetensors("digits.safetensors")?;
    println!("saved in digits.safetensors");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_learns_and_its_weights_can_be_loaded() -> Result<()> {
        let device = Device::cpu()?;
        let (net, accuracy) = train(3, &device)?;
        assert!(accuracy > 0.9, "{accuracy} after 3 epochs");

        let mut other = Net::new(&device, 1)?;
        other.load_state_dict(&net.state_dict()?, Strict::Yes)?;
        other.eval();
        let x = Tensor::ones([1, 1, 8, 8], DType::F32, &device)?;
        assert_eq!(other.forward(&x)?.to_vec::<f32>()?, net.forward(&x)?.to_vec::<f32>()?);
        Ok(())
    }
}

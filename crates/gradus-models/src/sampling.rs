//! [`Sampling`]: how a token is drawn from the logits of a language model.

use gradus_tensor::{Error, Generator, Result};

const OP: &str = "sampling";

/// How to draw a token from logits. The steps come in transformers' order: repetition penalty, temperature, `top_k`,
/// `top_p`. The defaults draw from the model's own probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits, at least 0. Below 1 likely tokens become likelier. 0 is greedy: the likeliest token is
    /// taken, and of equal ones the first. Default 1.
    pub temperature: f64,
    /// Draw only among this many likeliest tokens, and those as likely as the last of them. At least 1. By default all.
    pub top_k: Option<usize>,
    /// Draw only among the likeliest tokens whose probabilities together reach this share, above 0 and at most 1 (Holtzman
    /// et al., 2020). Default 1, which is all.
    pub top_p: f64,
    /// Logits of tokens that the model has seen are divided by this factor if they are positive, and multiplied by it
    /// otherwise (Keskar et al., 2019). Above 0; default 1, which changes nothing.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Fails if a number is out of its range.
    #[track_caller]
    pub(crate) fn check(&self) -> Result<()> {
        let Sampling { temperature, top_k, top_p, repetition_penalty } = *self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            let e = Error::argument(OP, format!("the temperature is {temperature}; it is finite and at least 0"));
            return Err(e.help("0 takes the likeliest token, 1 draws from the model's own probabilities"));
        }
        if top_k == Some(0) {
            return Err(Error::argument(OP, "top_k is 0, which leaves no token").help("give at least 1, or none"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let e = Error::argument(OP, format!("top_p is {top_p}; it is a share, above 0 and at most 1"));
            return Err(e.help("1 draws among all tokens"));
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            let m = format!("the repetition penalty is {repetition_penalty}; it is finite and above 0");
            return Err(Error::argument(OP, m).help("1 changes nothing, 1.2 is common"));
        }
        Ok(())
    }

    /// The probabilities from which a token is drawn after the tokens `seen`, one for each of the logits. Errors if a
    /// setting is out of its range, or if a logit is NaN or infinite.
    ///
    /// ```
    /// use gradus_models::Sampling;
    /// let sampling = Sampling { top_k: Some(2), ..Sampling::default() };
    /// let p = sampling.probabilities(&[1.0, 3.0, 2.0], &[])?;
    /// assert!(p[0] == 0.0 && (p[1] - 0.731_058_6).abs() < 1e-6);
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn probabilities(&self, logits: &[f64], seen: &[i64]) -> Result<Vec<f64>> {
        self.check()?;
        if logits.is_empty() {
            return Err(Error::argument(OP, "there are no logits"));
        }
        if let Some(at) = logits.iter().position(|x| !x.is_finite()) {
            let e = Error::argument(OP, format!("the logit of token {at} is {}", logits[at]));
            return Err(e.help("the model's weights may hold NaN or infinity; train it anew"));
        }
        let mut scores = logits.to_vec();
        if self.repetition_penalty != 1.0 {
            for &token in seen {
                // A token may occur several times, so the penalty starts from its logit each time.
                let Some(i) = usize::try_from(token).ok().filter(|&i| i < logits.len()) else { continue };
                let logit = logits[i];
                scores[i] = if logit > 0.0 { logit / self.repetition_penalty } else { logit * self.repetition_penalty };
            }
        }
        // With the largest score subtracted first, no temperature overflows.
        let best = first_largest(&scores);
        let largest = scores[best];
        if self.temperature == 0.0 {
            scores.fill(0.0);
            scores[best] = 1.0;
            return Ok(scores);
        }
        scores.iter_mut().for_each(|x| *x = (*x - largest) / self.temperature);
        if let Some(k) = self.top_k.filter(|&k| k < scores.len()) {
            let mut order = scores.clone();
            let (_, &mut least, _) = order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            scores.iter_mut().filter(|x| **x < least).for_each(|x| *x = f64::NEG_INFINITY);
        }
        scores.iter_mut().for_each(|x| *x = x.exp());
        normalize(&mut scores);
        if self.top_p < 1.0 {
            let mut order: Vec<usize> = (0..scores.len()).collect();
            // Stable, so that of equally likely tokens the first ones stay.
            order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
            let mut sum = 0.0;
            for &i in &order {
                // A token stays if those before it have not reached the share.
                let stays = sum < self.top_p;
                sum += scores[i];
                if !stays {
                    scores[i] = 0.0;
                }
            }
            normalize(&mut scores);
        }
        Ok(scores)
    }
}

fn normalize(p: &mut [f64]) {
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|x| *x /= sum);
}

/// The position of the largest number, and of equal ones the first.
fn first_largest(x: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        if *value > x[best] {
            best = i;
        }
    }
    best
}

/// Draws a token.
#[track_caller]
pub(crate) fn sample(logits: &[f64], seen: &[i64], sampling: &Sampling, generator: &mut Generator) -> Result<i64> {
    let p = sampling.probabilities(logits, seen)?;
    if sampling.temperature == 0.0 {
        return Ok(first_largest(&p) as i64);
    }
    let mut left = (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    for (i, p) in p.iter().enumerate() {
        left -= p;
        if left < 0.0 {
            return Ok(i as i64);
        }
    }
    // Rounding may leave a rest, which belongs to the last token that can be drawn.
    Ok(p.iter().rposition(|&p| p > 0.0).unwrap_or(0) as i64)
}

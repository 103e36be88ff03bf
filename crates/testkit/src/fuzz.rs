//! Malformed inputs for parsers of network data.
//!
//! The loop takes a sample, mutates it at random and gives it to the parser. A mutated input that the parser accepts becomes a
//! sample itself, so that later inputs reach deeper code. It needs no instrumentation and runs on the stable compiler, in the test
//! profile, where arithmetic overflow panics.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Seed;

/// How many seconds a target runs. `cargo xtask fuzz` sets it.
const VARIABLE: &str = "FUZZ_SECONDS";
/// How long a target runs as a normal test.
const DEFAULT_LENGTH: Duration = Duration::from_secs(1);
/// An input that takes longer is a denial of service.
const SLOW: Duration = Duration::from_secs(5);
/// The longest input.
const MAX_LENGTH: usize = 8 * 1024;
/// How many samples are kept.
const MAX_SAMPLES: usize = 2_000;
/// Bytes and words that parsers treat specially.
const SPECIAL: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\x80",
    b"\xc3\x28",
    b"\xf0\x9f\x8e\xae",
    b"\r\n",
    b"\n",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b";",
    b"=",
    b".",
    b"%00",
    b"%",
    b"-1",
    b"0",
    b"9223372036854775808",
    b"1e999",
    b"null",
    b"true",
    b" ",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
];

/// Gives mutated samples to a parser for one second, or for `FUZZ_SECONDS`. The parser returns whether it accepts an input. It must
/// neither panic nor take long.
///
/// # Panics
/// If the parser panics or takes too long. The message shows the input.
pub fn fuzz<S: AsRef<[u8]>>(target: &str, samples: &[S], mut parse: impl FnMut(&[u8]) -> bool) {
    let seconds = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
    let (seed, length) = (Seed::new(), seconds.map_or(DEFAULT_LENGTH, Duration::from_secs));
    let mut samples: Vec<Vec<u8>> = samples.iter().map(|sample| sample.as_ref().to_vec()).collect();
    samples.push(Vec::new());
    let (given, mut choices) = (samples.len(), seed.choices(0));
    let watchdog = Watchdog::start(target);
    let (began, mut executions, mut accepted) = (Instant::now(), 0_u64, 0_u64);
    // Unchanged samples come first, because they include inputs that once failed.
    let mut next = 0;
    while began.elapsed() < length {
        let input = match samples.get(next).filter(|_| next < given) {
            Some(sample) => sample.clone(),
            None => mutated(&samples, &mut choices),
        };
        next += 1;
        watchdog.set(&input);
        let started = Instant::now();
        match catch_unwind(AssertUnwindSafe(|| parse(&input))) {
            Err(panic) => {
                eprintln!("{target} panics at {}", escaped(&input));
                resume_unwind(panic);
            }
            Ok(is_accepted) => {
                assert!(
                    started.elapsed() < SLOW,
                    "{target} takes {:?} for {}",
                    started.elapsed(),
                    escaped(&input)
                );
                executions += 1;
                accepted += u64::from(is_accepted);
                if is_accepted && next > given {
                    keep(&mut samples, given, input, &mut choices);
                }
            }
        }
    }
    let rate = u128::from(executions) * 1_000 / began.elapsed().as_millis().max(1);
    eprintln!("{target}: {executions} executions, {rate}/s, {accepted} accepted, {} samples", samples.len());
}

/// Keeps an accepted input as a sample, possibly in place of an earlier accepted input. The caller's samples stay.
fn keep(samples: &mut Vec<Vec<u8>>, given: usize, input: Vec<u8>, choices: &mut Rng) {
    if samples.len() < MAX_SAMPLES {
        samples.push(input);
    } else if given < samples.len() {
        let at = choices.usize(given..samples.len());
        samples[at] = input;
    }
}

/// Returns a sample with one to eight mutations.
fn mutated(samples: &[Vec<u8>], choices: &mut Rng) -> Vec<u8> {
    let mut input = samples[choices.usize(..samples.len())].clone();
    for _ in 0..1 << choices.u32(0..=3) {
        mutate(&mut input, samples, choices);
    }
    input.truncate(MAX_LENGTH);
    input
}

fn mutate(input: &mut Vec<u8>, samples: &[Vec<u8>], choices: &mut Rng) {
    let at = choices.usize(..=input.len());
    let until = (at + choices.usize(..=16)).min(input.len());
    match choices.u32(0..9) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << choices.u32(0..8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = choices.u8(..);
            }
        }
        2 => drop(input.drain(at..until)),
        3 => input.truncate(at),
        4 => {
            let special = SPECIAL[choices.usize(..SPECIAL.len())];
            input.splice(at..at, special.iter().copied());
        }
        5 => {
            let special = SPECIAL[choices.usize(..SPECIAL.len())];
            input.splice(at..until, special.iter().copied());
        }
        // Repeats a part, sometimes 200 times, to test nesting depth and length.
        6 => {
            let times = if choices.u32(0..20) == 0 { 200 } else { 1 };
            let part: Vec<u8> = input[at..until].repeat(times);
            input.splice(at..at, part);
        }
        // Continues with the end of another sample.
        7 => {
            let other = &samples[choices.usize(..samples.len())];
            let from = choices.usize(..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => {
            let random: Vec<u8> = (0..choices.usize(1..=8)).map(|_| choices.u8(..)).collect();
            input.splice(at..until, random);
        }
    }
}

/// Formats an input as a Rust byte string that can be pasted into the samples.
fn escaped(input: &[u8]) -> String {
    let mut text = String::from("b\"");
    input.iter().flat_map(|byte| std::ascii::escape_default(*byte)).for_each(|byte| text.push(byte.into()));
    let _ = write!(text, "\" ({} bytes)", input.len());
    text
}

/// Aborts the process if the parser hangs on one input. A thread cannot be stopped in another way.
struct Watchdog {
    current: Arc<Mutex<(Instant, Vec<u8>)>>,
    over: Arc<AtomicBool>,
}

impl Watchdog {
    fn start(target: &str) -> Self {
        let current = Arc::new(Mutex::new((Instant::now(), Vec::new())));
        let over = Arc::<AtomicBool>::default();
        let (target, seen, ended) = (target.to_owned(), current.clone(), over.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
                let (since, input) = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if since.elapsed() > SLOW * 4 && !ended.load(Ordering::Relaxed) {
                    eprintln!("{target} hangs at {}", escaped(&input));
                    std::process::abort();
                }
            }
        });
        Self { current, over }
    }

    fn set(&self, input: &[u8]) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.0 = Instant::now();
        current.1.clear();
        current.1.extend_from_slice(input);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "found")]
    fn fuzzing_finds_a_rare_panic() {
        let samples = ["GET /index.html HTTP/1.1\r\nhost: example\r\n\r\n"];
        fuzz("an example", &samples, |input| {
            assert!(!(input.contains(&0xff) && input.starts_with(b"GET") && input.len() < 40), "found");
            input.starts_with(b"GET")
        });
    }

    #[test]
    fn same_seed_makes_the_same_inputs() {
        let samples = [b"one".to_vec(), b"two".to_vec()];
        let inputs = |seed: u64| {
            let mut choices = Rng::with_seed(seed);
            (0..200).map(|_| mutated(&samples, &mut choices)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
    }
}

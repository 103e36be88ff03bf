//! The processor time and memory of a process, from `/proc`.

use std::fs;
use std::time::Duration;

/// `/proc` counts processor time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// The resources that a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Processor time, user and system.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub memory: u64,
}

impl Usage {
    /// Reads the usage of a process.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The program name in parentheses may contain anything. The state and numbers follow it.
        let (_, numbers) = stat.rsplit_once(')').unwrap();
        let times = numbers.split_whitespace().skip(11).take(2);
        let ticks: u32 = times.map(|ticks| ticks.parse::<u32>().unwrap()).sum();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
        Self { cpu: TICK * ticks, memory: kib * 1024 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn usage_grows_with_work_and_memory() {
        let before = Usage::of(std::process::id());
        let (began, mut memory) = (Instant::now(), vec![0_u8; 64 << 20]);
        while Usage::of(std::process::id()).cpu < before.cpu + 5 * TICK {
            memory.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
            assert!(began.elapsed() < Duration::from_secs(60), "no processor time is counted");
        }
        let after = Usage::of(std::process::id());
        assert!(after.memory - before.memory >= 60 << 20, "{before:?} {after:?}");
        // Several threads may have worked, but not a hundred.
        assert!(after.cpu - before.cpu < 100 * began.elapsed(), "{before:?} {after:?}");
    }
}

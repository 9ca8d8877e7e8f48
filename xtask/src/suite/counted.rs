//! What became of tests, from what their programs wrote.

use std::collections::BTreeMap;
use std::fmt;

/// How a program of tests ended, and what it wrote.
pub struct Written<'a> {
    pub program: &'a str,
    pub text: &'a str,
    pub errors: &'a str,
    /// None if it ended well; otherwise its exit code or signal, or that its time was over.
    pub trouble: Option<&'a str>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    passed: usize,
    failed: usize,
    /// How many were not run, by reason.
    not_run: BTreeMap<String, usize>,
    /// Which of them passed without doing anything, since the machine lacks something. A lab's `not_run` says so.
    idle: Vec<String>,
    /// Programs that ended badly, with the reason.
    bad: Vec<String>,
}

impl Counted {
    pub fn of(written: &Written) -> Counted {
        let mut counted = Counted::default();
        let (mut announced, mut begun, mut sums) = (0, 0, Vec::new());
        for line in written.text.lines() {
            if let Some(rest) = line.strip_prefix("running ") {
                begun += 1;
                announced += number_before(rest, " test");
            } else if let Some(rest) = line.strip_prefix("test result: ") {
                sums.push((number_before(rest, " passed"), number_before(rest, " failed")));
            } else if let Some((_, what)) =
                line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
            {
                counted.take(what);
            }
        }
        // Where a test writes past the harness its line is torn; the sum is not.
        if sums.len() == begun {
            counted.passed = sums.iter().map(|(passed, _)| passed).sum();
            counted.failed = sums.iter().map(|(_, failed)| failed).sum();
        }
        counted.receive_idle(written);
        // One that a test ended by `exit(0)` is not known to be good.
        let without_a_sum = sums.len() != begun && announced > counted.known();
        let trouble = written.trouble.or(without_a_sum.then_some("exit status: 0, without a result"));
        if let Some(trouble) = trouble {
            counted.cut_short(written.program, trouble, announced);
        }
        counted
    }

    /// Tests that have an outcome.
    fn known(&self) -> usize {
        self.passed + self.failed + self.not_run.values().sum::<usize>()
    }

    /// The outcome of one test.
    fn take(&mut self, what: &str) {
        match what {
            "ok" => self.passed += 1,
            "FAILED" => self.failed += 1,
            "ignored" => self.skip("marked as ignored without a reason", 1),
            what => {
                if let Some(why) = what.strip_prefix("ignored, ") {
                    self.skip(&format!("marked as ignored: {why}"), 1);
                }
            }
        }
    }

    fn receive_idle(&mut self, written: &Written) {
        for line in written.errors.lines().filter_map(|line| line.strip_prefix("not run: ")) {
            self.idle.push(format!("{}, {line}", written.program));
            self.skip(line.split_once(": ").map_or(line, |(_, why)| why), 1);
            self.passed = self.passed.saturating_sub(1);
        }
    }

    /// The program ended badly. Tests without an outcome were not run to their end. If none has failed, one of these
    /// did.
    fn cut_short(&mut self, program: &str, trouble: &str, announced: usize) {
        let mut rest = announced.saturating_sub(self.known());
        if self.failed == 0 {
            self.failed = 1;
            rest = rest.saturating_sub(1);
        }
        if rest > 0 {
            self.skip(&format!("{program} ended before them ({trouble})"), rest);
        }
        self.bad.push(format!("{program} ({trouble})"));
    }

    /// Something that is no program of tests went wrong.
    pub fn fail(&mut self, what: String) {
        self.failed += 1;
        self.bad.push(what);
    }

    fn skip(&mut self, why: &str, count: usize) {
        *self.not_run.entry(why.to_owned()).or_default() += count;
    }

    pub fn add(&mut self, other: Counted) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.idle.extend(other.idle);
        self.bad.extend(other.bad);
        for (why, count) in other.not_run {
            self.skip(&why, count);
        }
    }

    pub fn is_good(&self) -> bool {
        self.bad.is_empty() && self.failed == 0
    }
}

impl fmt::Display for Counted {
    /// A line for each test that did nothing; the last line is the sum, with reasons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.idle {
            writeln!(f, "not run: {line}")?;
        }
        let because = |reasons: Vec<String>| match reasons.is_empty() {
            true => String::new(),
            false => format!(" ({})", reasons.join("; ")),
        };
        let whys = self.not_run.iter().map(|(why, count)| format!("{count} {why}")).collect();
        let not_run: usize = self.not_run.values().sum();
        let (failed, not_run) = (
            format!("{} failed{}", self.failed, because(self.bad.clone())),
            format!("{not_run} not run{}", because(whys)),
        );
        writeln!(f, "tests: {} passed, {failed}, {not_run}", self.passed)
    }
}

/// 0 if there is none.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "running 6 tests\ntest a ... ok\ntest b ... ok\n\
                        test c ... ignored, needs a device\ntest d ... ignored\n\
                        test e ... ignored, needs a device\ntest f - should panic ... ok\n";

    fn written<'a>(text: &'a str, errors: &'a str, trouble: Option<&'a str>) -> Written<'a> {
        Written { program: "real", text, errors, trouble }
    }

    fn last(counted: &Counted) -> String {
        counted.to_string().lines().last().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_last_line_counts_results_and_reasons() {
        let errors = "warning: x\nnot run: kvm::a: no /dev/kvm (gone)\nit was not run: y\n";
        let mut counted = Counted::default();
        counted.add(Counted::of(&written(TEXT, errors, None)));
        counted.add(Counted::of(&written("running 1 test\ntest x ... ok\n", "", None)));
        assert!(counted.is_good());
        assert!(counted.to_string().starts_with("not run: real, kvm::a: no /dev/kvm (gone)\n"), "{counted}");
        assert_eq!(
            last(&counted),
            "tests: 3 passed, 0 failed, 4 not run (1 marked as ignored without a reason; \
             2 marked as ignored: needs a device; 1 no /dev/kvm (gone))"
        );
    }

    #[test]
    fn a_result_line_that_output_splits_is_still_counted() {
        let text = "running 2 tests\ntest a ... said\nok\ntest b ... ok\n\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored\n";
        assert_eq!(last(&Counted::of(&written(text, "", None))), "tests: 2 passed, 0 failed, 0 not run");
    }

    #[test]
    fn a_failed_test_is_counted_once_and_its_program_is_named() {
        let counted = Counted::of(&written(
            "running 2 tests\ntest a ... ok\ntest b ... FAILED\n",
            "",
            Some("exit status: 101"),
        ));
        assert!(!counted.is_good());
        assert_eq!(last(&counted), "tests: 1 passed, 1 failed (real (exit status: 101)), 0 not run");
    }

    #[test]
    fn a_program_that_a_test_ends_well_too_early_has_failed() {
        let counted = Counted::of(&written("running 3 tests\ntest a ... ok\n", "", None));
        assert!(!counted.is_good());
        assert!(
            last(&counted).starts_with("tests: 1 passed, 1 failed (real (exit status: 0, without"),
            "{counted}"
        );
    }

    /// It wrote no sum: what it began and did not end failed, or was not run.
    #[test]
    fn a_program_that_crashed_or_took_too_long_has_no_test_lost() {
        let text = "running 5 tests\ntest a ... ok\ntest b ... ok\n";
        for trouble in ["signal: 6 (SIGABRT)", "not ended after 30 min"] {
            let counted = Counted::of(&written(text, "", Some(trouble)));
            let expected = format!(
                "tests: 2 passed, 1 failed (real ({trouble})), 2 not run (2 real ended before them ({trouble}))"
            );
            assert_eq!(last(&counted), expected);
        }
        let nothing = Counted::of(&written("", "", Some("signal: 11 (SIGSEGV)")));
        assert_eq!(last(&nothing), "tests: 0 passed, 1 failed (real (signal: 11 (SIGSEGV))), 0 not run");
    }
}

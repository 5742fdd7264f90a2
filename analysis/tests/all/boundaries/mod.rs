//! Tests of steps and epochs of recordings without marks: the forms of training loops, and forms that only look like
//! them.
//! (Over 400 lines: each form is one loop that reads like the program that it represents.)

mod hostile;
mod layers;
mod tape;

use memctl_analysis::boundaries::Boundaries;
use memctl_model::Phase;
use tape::Tape;

const TRAIN: &str = "/home/u/train.py";

/// A script: setup, then `body` in `<module>`.
fn script(body: impl FnOnce(&mut Tape)) -> Tape {
    let mut tape = Tape::default();
    tape.call("<module>", TRAIN, 3, |tape| {
        for line in 3..9 {
            tape.line(line).alloc(1 << 20);
        }
        body(tape);
        tape.line(90).free(1 << 20);
    });
    tape
}

/// A step in the innermost function, from line 20 on.
fn step(tape: &mut Tape) {
    tape.line(20).alloc(4096);
    tape.line(21).forward(8 << 20);
    tape.line(22).backward(8 << 20, 1 << 20);
    tape.line(23).optimizer();
    tape.line(24).zero_grad(1 << 20);
    tape.line(20).free(4096);
}

fn by(found: &Boundaries) -> &str {
    found.by.as_deref().unwrap_or_default()
}

fn counts(found: &Boundaries) -> (usize, usize, usize) {
    let evaluations = found.phases.iter().filter(|(_, phase)| *phase == Phase::Eval).count();
    (found.steps.len(), found.epochs.len(), evaluations)
}

#[test]
fn a_script_with_two_loops_and_an_evaluation() {
    let tape = script(|tape| {
        for _ in 0..5 {
            (0..12).for_each(|_| step(tape));
            tape.line(26).predict(2 << 20);
        }
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:20", (60, 5, 5)));
    // At the end of each step, live memory is at most the base level, because the activations were freed.
    let levels: Vec<i64> = found.steps.iter().map(|step| tape.live_at(step.end_ns)).collect();
    assert!(levels.iter().all(|&level| level <= (6 << 20) + 4096), "{levels:?}");
    assert!(found.steps.iter().zip(&found.steps[1..]).all(|(a, b)| a.end_ns < b.begin_ns));
    assert!(found.epochs.iter().all(|epoch| epoch.begin_ns < epoch.end_ns));
}

#[test]
fn functions_that_main_calls_every_epoch() {
    let tape = script(|tape| {
        tape.line(60);
        tape.call("main", TRAIN, 40, |tape| {
            tape.line(41).alloc(4 << 20);
            for _ in 0..4 {
                tape.line(43);
                tape.call("train_epoch", TRAIN, 20, |tape| (0..10).for_each(|_| step(tape)));
                tape.line(44);
                tape.call("evaluate", "/home/u/eval.py", 7, |tape| {
                    (0..3).for_each(|_| {
                        tape.predict(1 << 20);
                    })
                });
            }
            tape.line(46).free(4 << 20);
        });
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:20", (40, 4, 4)));
}

#[test]
fn a_step_in_a_function_of_its_own_is_told_by_the_loop_that_calls_it() {
    let tape = script(|tape| {
        tape.call("fit", TRAIN, 50, |tape| {
            for _ in 0..30 {
                tape.line(51);
                tape.call("train_step", TRAIN, 20, step);
                // The function's locals are freed when it returns, at the caller's line.
                tape.alloc(0).free(512);
            }
        });
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:51", (30, 0, 0)));
}

#[test]
fn loops_one_after_the_other_are_all_steps() {
    let tape = script(|tape| {
        for (function, line) in [("pretrain", 30), ("finetune", 31)] {
            tape.line(line);
            tape.call(function, &format!("/home/u/{function}.py"), 20, |tape| (0..15).for_each(|_| step(tape)));
        }
    });
    assert_eq!(counts(&tape.find()), (30, 0, 0));
}

#[test]
fn accumulated_gradients_make_one_step() {
    let tape = script(|tape| {
        for _ in 0..12 {
            for _ in 0..4 {
                tape.line(21).forward(8 << 20);
                tape.line(22).backward(8 << 20, 1 << 18);
            }
            tape.line(24).optimizer();
            tape.line(25).zero_grad(1 << 20);
        }
    });
    let found = tape.find();
    assert_eq!(counts(&found), (12, 0, 0));
    assert!(found.steps.iter().all(|step| tape.live_at(step.end_ns) == 6 << 20));
}

#[test]
fn an_optimizer_that_allocates_once_does_not_tell_steps() {
    let plain = |gradients_go: bool| {
        script(|tape| {
            for at in 0..20 {
                tape.line(21).forward(8 << 20);
                tape.line(22).backward(8 << 20, if gradients_go || at == 0 { 1 << 20 } else { 0 });
                tape.line(23);
                if at == 0 {
                    tape.optimizer();
                }
                if gradients_go {
                    tape.line(24).zero_grad(1 << 20);
                }
            }
        })
    };
    assert_eq!(counts(&plain(true).find()).0, 20);
    assert_eq!(counts(&plain(false).find()).0, 20);
}

#[test]
fn gradients_given_back_at_the_loops_top_cost_no_step() {
    let tape = script(|tape| {
        for at in 0..20 {
            tape.line(20);
            if at > 0 {
                tape.zero_grad(1 << 20);
            }
            tape.line(21).forward(8 << 20);
            tape.line(22).backward(8 << 20, 1 << 20);
        }
    });
    assert_eq!(counts(&tape.find()), (20, 0, 0));
}

#[test]
fn of_three_steps_the_first_one_has_no_gradients_to_give_back() {
    let tape = script(|tape| {
        for at in 0..3 {
            tape.line(20);
            if at > 0 {
                tape.zero_grad(1 << 20);
            }
            tape.line(21).forward(8 << 20).line(22).backward(8 << 20, 1 << 20).line(23);
            if at == 0 {
                tape.optimizer();
            }
        }
    });
    assert_eq!(counts(&tape.find()), (3, 0, 0));
}

#[test]
fn frames_of_other_languages_around_those_of_python_are_passed_over() {
    let all = |tape: &mut Tape, body: &dyn Fn(&mut Tape)| {
        tape.call("clone3", "../sysdeps/unix/sysv/linux/x86_64/clone3.S", 81, |tape| {
            tape.call("_PyEval_EvalFrameDefault", "/python/Python/ceval.c", 4769, body);
        });
    };
    let mut tape = Tape::default();
    for _ in 0..20 {
        all(&mut tape, &|tape| {
            tape.call("<module>", TRAIN, 20, |tape| {
                tape.line(21).forward(8 << 20);
                tape.line(22).package("backward", "torch/_tensor.py", 631, |tape| {
                    tape.alloc(4);
                });
            });
        });
        all(&mut tape, &|tape| {
            tape.call("torch::autograd::Engine::thread_main", "??", 0, |tape| {
                tape.alloc(1 << 20).free(8 << 20);
            })
        });
        all(&mut tape, &|tape| {
            tape.call("<module>", TRAIN, 22, |tape| {
                tape.package("backward", "torch/_tensor.py", 631, |tape| {
                    tape.free(4);
                });
                tape.line(24).free(1 << 20);
            })
        });
    }
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:21", (20, 0, 0)));
}

#[test]
fn of_two_optimizers_the_second_ends_the_step() {
    let tape = script(|tape| {
        for _ in 0..20 {
            for line in [20, 30] {
                tape.line(line).forward(4 << 20);
                tape.line(line + 1).backward(4 << 20, 1 << 20);
                tape.line(line + 2).optimizer();
                tape.line(line + 3).zero_grad(1 << 20);
            }
        }
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:20", (20, 0, 0)));
}

#[test]
fn statements_that_go_back_a_line_are_no_loop() {
    let tape = script(|tape| {
        for _ in 0..25 {
            // `with autocast():` on line 20 frees its cache at its end. Arguments are on lines below their call.
            tape.line(20).alloc(256);
            tape.line(22).forward(8 << 20);
            tape.line(21).alloc(128).free(128);
            tape.line(20).free(256);
            tape.line(24).backward(8 << 20, 1 << 20);
            tape.line(25).optimizer();
            tape.line(26).zero_grad(1 << 20);
        }
    });
    assert_eq!(counts(&tape.find()), (25, 0, 0));
}

#[test]
fn branches_in_turns_are_no_evaluation() {
    let tape = script(|tape| {
        for at in 0..30 {
            tape.line(if at % 2 == 0 { 15 } else { 17 }).forward(8 << 20);
            tape.line(22).backward(8 << 20, 1 << 20);
            tape.line(23).optimizer();
            tape.line(24).zero_grad(1 << 20);
        }
    });
    assert_eq!(counts(&tape.find()), (30, 0, 0));
}

#[test]
fn comprehensions_and_endless_loops() {
    let comprehension = script(|tape| {
        tape.line(30);
        tape.call("<listcomp>", TRAIN, 30, |tape| {
            for _ in 0..20 {
                tape.call("train_step", TRAIN, 20, step);
            }
        });
    });
    assert_eq!(counts(&comprehension.find()).0, 20);
    let endless = script(|tape| {
        for at in 0..20 {
            tape.line(19).elsewhere();
            step(tape);
            if at == 19 {
                // `if done: break`, after a last prediction.
                tape.line(26).predict(1 << 20);
            }
        }
    });
    assert_eq!(counts(&endless.find()).0, 20);
}

#[test]
fn an_evaluation_every_so_many_steps_of_one_long_epoch() {
    let tape = script(|tape| {
        for at in 1..=100 {
            step(tape);
            if at % 20 == 0 {
                tape.line(27);
                tape.call("evaluate", TRAIN, 70, |tape| {
                    tape.predict(1 << 20);
                });
            }
        }
    });
    assert_eq!(counts(&tape.find()), (100, 5, 5));
}

#[test]
fn a_library_that_loops() {
    const LOOP: &str = "transformers/trainer.py";
    let tape = script(|tape| {
        tape.line(40);
        tape.package("train", LOOP, 2240, |tape| {
            tape.package("_inner_training_loop", LOOP, 2400, |tape| {
                tape.alloc(1 << 20);
                for _ in 0..4 {
                    for _ in 0..8 {
                        tape.line(2555);
                        tape.package("training_step", LOOP, 3745, |tape| {
                            tape.forward(8 << 20);
                            tape.line(3791);
                            tape.package("backward", "accelerate/accelerator.py", 2473, |tape| {
                                tape.backward(8 << 20, 1 << 20);
                            });
                        });
                        tape.line(2620);
                        tape.package("step", "accelerate/optimizer.py", 179, |tape| {
                            tape.optimizer();
                        });
                        tape.line(2630).zero_grad(1 << 20);
                    }
                    tape.line(2660);
                    tape.package("_maybe_log_save_evaluate", LOOP, 3095, |tape| {
                        tape.package("evaluation_loop", LOOP, 4330, |tape| {
                            tape.predict(1 << 20);
                        });
                    });
                }
            });
        });
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at trainer.py:2555", (32, 4, 4)));
}

#[test]
fn a_library_that_trains_within_the_optimizers_step() {
    const LOOPS: &str = "lightning/pytorch/loops/";
    let tape = script(|tape| {
        tape.line(40);
        tape.package("run", &format!("{LOOPS}fit_loop.py"), 210, |tape| {
            for _ in 0..3 {
                tape.line(216);
                tape.package("advance", &format!("{LOOPS}fit_loop.py"), 455, |tape| {
                    tape.package("run", &format!("{LOOPS}training_epoch_loop.py"), 150, |tape| {
                        for _ in 0..9 {
                            tape.line(152);
                            tape.package("optimizer_step", "lightning/pytorch/core/module.py", 1302, |tape| {
                                tape.package("wrapper", "torch/optim/optimizer.py", 533, |tape| {
                                    tape.package("closure", &format!("{LOOPS}automatic.py"), 130, |tape| {
                                        tape.zero_grad(0).forward(8 << 20);
                                        tape.call("training_step", TRAIN, 70, |tape| {
                                            // The loss.
                                            tape.alloc(512).free(512);
                                        });
                                        tape.backward(8 << 20, 1 << 20);
                                    });
                                    tape.package("step", "torch/optim/adam.py", 248, |tape| {
                                        tape.alloc(2048).free(2048);
                                    });
                                });
                            });
                            tape.line(160).free(1 << 20);
                        }
                    });
                });
                tape.line(217);
                tape.package("on_advance_end", &format!("{LOOPS}fit_loop.py"), 470, |tape| {
                    tape.predict(1 << 20);
                });
            }
        });
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at training_epoch_loop.py:152", (27, 3, 3)));
    let forwards = found.phases.iter().filter(|(_, phase)| *phase == Phase::Forward).count();
    assert_eq!(forwards, 27, "the closure's passes are passes, though the optimizer calls it");
}

#[test]
fn requests_and_not_their_tokens_are_the_rounds_of_a_serving_loop() {
    let tape = script(|tape| {
        for _ in 0..40 {
            tape.line(30).alloc(4096);
            tape.line(31);
            tape.package("generate", "transformers/generation/utils.py", 2200, |tape| {
                for _ in 0..6 {
                    tape.line(2210).forward(1 << 16);
                    tape.line(2216).free(1 << 15);
                }
            });
            tape.line(32).free(4096);
        }
    });
    let found = tape.find();
    assert_eq!((by(&found), counts(&found)), ("the loop at train.py:30", (40, 0, 0)));
}

#[test]
fn without_stacks_the_requests_tell_the_period() {
    let mut tape = script(|tape| (0..40).for_each(|_| step(tape)));
    tape.events.iter_mut().for_each(|event| event.stack = memctl_model::StackId::NONE);
    let found = tape.find();
    assert!(by(&found).starts_with("a period of "), "{}", by(&found));
    assert!((36..=44).contains(&found.steps.len()), "{}", found.steps.len());
}

#[test]
fn a_few_steps_before_a_long_service_are_not_all_there_is() {
    let tape = script(|tape| {
        (0..4).for_each(|_| step(tape));
        for at in 0..1000_u64 {
            tape.line(40).alloc((64 << 20) + at * 512).free(64 << 20);
        }
    });
    let found = tape.find();
    assert_eq!(found.steps.len(), 4);
    assert!(found.windows.len() >= 20, "what follows them is cut into windows: {:?}", found.by);
    assert!(by(&found).contains("train.py:20") && by(&found).contains(" and windows of "));
}

#[test]
fn where_nothing_repeats_windows_are_cut() {
    let tape = script(|tape| {
        for at in 0..2000_u64 {
            tape.line(30).alloc((1 << 20) + at * 512).free(1 << 20);
        }
    });
    let found = tape.find();
    assert!(by(&found).starts_with("windows of "), "{}", by(&found));
    assert!((20..=64).contains(&found.windows.len()) && found.steps.is_empty());
    assert_eq!(script(|_| ()).find(), Boundaries::default(), "a handful of events is no course");
}

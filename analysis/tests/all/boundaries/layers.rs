//! Tests of repetition that is not a step: the layers of a model, loops inside library code, the parts of one step.
//! Also tests of repetition beside these that counts: calls of a model.

use memctl_analysis::boundaries::Boundaries;

use super::tape::Tape;
use super::{TRAIN, by, counts, script, step};

const MODEL: &str = "/home/u/model.py";

/// A model's own loop over its layers. Each layer keeps some memory and frees some.
fn layers(tape: &mut Tape, count: u64, kept: u64, given_back: u64) {
    tape.package("_wrapped_call_impl", "torch/nn/modules/module.py", 1779, |tape| {
        tape.call("forward", MODEL, 240, |tape| {
            tape.alloc(4096);
            for _ in 0..count {
                tape.line(243);
                tape.package("_wrapped_call_impl", "torch/nn/modules/module.py", 1779, |tape| {
                    tape.call("forward", MODEL, 100, |tape| {
                        tape.line(101).alloc(given_back);
                        if kept > 0 {
                            tape.line(102).alloc(kept);
                        }
                        tape.line(103).free(given_back);
                    });
                });
                // The loop itself allocates, too.
                tape.line(244).alloc(512).free(512);
            }
            tape.line(250).free(4096);
        });
    });
}

fn nothing(tape: &Tape) {
    assert_eq!(tape.find(), Boundaries::default());
}

#[test]
fn the_layers_of_one_pass_are_no_steps() {
    for (kept, given_back) in [(8 << 20, 4 << 20), (1 << 20, 16 << 20), (0, 16 << 20)] {
        nothing(&script(|tape| layers(tape.line(20), 40, kept, given_back)));
    }
}

#[test]
fn a_pass_and_its_backward_pass_are_one_step() {
    let tape = script(|tape| {
        layers(tape.line(20), 40, 1 << 20, 16 << 20);
        tape.line(21).backward(40 << 20, 10 << 20);
    });
    nothing(&tape);
}

#[test]
fn a_layer_that_is_called_by_no_module_is_no_step_while_it_keeps_what_it_makes() {
    let pass = |kept: u64| {
        script(|tape| {
            for _ in 0..40 {
                tape.line(20).forward(kept).line(21).alloc(4096).free(4096);
            }
        })
    };
    nothing(&pass(4 << 20));
    let served = script(|tape| {
        for _ in 0..40 {
            tape.line(20).predict(4 << 20).line(21).alloc(4096);
        }
    });
    assert_eq!((by(&served.find()), counts(&served.find()).0), ("the loop at train.py:20", 40));
}

#[test]
fn more_passes_than_models_have_layers_are_steps_though_they_keep_all() {
    let passes = |tape: &mut Tape| {
        for _ in 0..300 {
            tape.line(20).forward(4 << 20).line(21).alloc(4096).free(4096);
        }
    };
    let served = script(passes);
    assert_eq!((by(&served.find()), counts(&served.find()).0), ("the loop at train.py:20", 300));
    // The repetition may be over the cells of a sequence; they are all one step.
    nothing(&script(|tape| {
        passes(tape);
        tape.line(30).backward(1200 << 20, 4 << 20);
    }));
}

#[test]
fn calls_from_one_line_are_separate_by_what_lies_between_them() {
    let tape = script(|tape| {
        tape.line(20);
        for _ in 0..12 {
            layers(tape, 24, 0, 16 << 20);
            tape.alloc(512).free(512);
        }
    });
    assert_eq!((by(&tape.find()), counts(&tape.find()).0), ("the loop at train.py:20", 12));
}

#[test]
fn a_few_calls_are_neither_steps_nor_windows() {
    nothing(&script(|tape| {
        for _ in 0..5 {
            layers(tape.line(20), 60, 0, 16 << 20);
            tape.line(21).alloc(512).free(512);
        }
    }));
}

#[test]
fn tokens_are_no_requests() {
    nothing(&script(|tape| {
        tape.line(20);
        tape.call("generate", MODEL, 300, |tape| {
            for at in 0..100 {
                tape.line(301).predict(1 << 20);
                tape.line(302).alloc((1 << 16) + at * 512);
                if at > 0 {
                    tape.free((1 << 16) + (at - 1) * 512);
                }
            }
        });
    }));
}

#[test]
fn library_code_without_a_user_above_it_is_no_loop() {
    let mut tape = Tape::default();
    for _ in 0..154 {
        // Autograd's thread calls a function of bitsandbytes.
        tape.package("apply", "torch/autograd/function.py", 539, |tape| {
            tape.package("backward", "bitsandbytes/autograd/_functions.py", 530, |tape| {
                tape.package("dequantize_4bit", "bitsandbytes/functional.py", 1349, |tape| {
                    tape.alloc(1 << 20).free(1 << 20);
                });
            });
        });
    }
    nothing(&tape);
    let mut tape = Tape::default();
    for at in 0..400_u64 {
        tape.package("_bootstrap", "threading.py", 1002, |tape| {
            tape.package("fetch", "datasets/loader.py", 20 + (at % 2) as u32, |tape| {
                tape.alloc(1 << 20);
            });
        });
    }
    nothing(&tape);
}

#[test]
fn what_goes_round_beside_the_models_is_no_request() {
    let tape = script(|tape| {
        // Tensors are loaded one by one, each with a temporary block.
        for _ in 0..200 {
            tape.line(10).alloc(1 << 20).line(11).alloc(1 << 21).line(12).free(1 << 21);
        }
        layers(tape.line(20), 40, 0, 16 << 20);
    });
    nothing(&tape);
}

#[test]
fn a_model_that_is_loaded_is_no_course() {
    nothing(&script(|tape| {
        for at in 0..400_u64 {
            tape.line(10 + (at % 2) as u32).alloc(1 << 20);
        }
    }));
}

#[test]
fn a_library_that_loads_a_model_loops_within_one_call() {
    // Each weight is made whole, and a quarter of it stays.
    let load = |tape: &mut Tape| {
        tape.package("from_pretrained", "transformers/modeling_utils.py", 3900, |tape| {
            for at in 0..200 {
                tape.line(3910 + at % 3).alloc(16 << 20).alloc(4 << 20).free(16 << 20);
            }
        });
    };
    nothing(&script(|tape| load(tape.line(20))));
    let again = script(|tape| {
        for _ in 0..10 {
            load(tape.line(20));
            tape.line(21).free(800 << 20);
        }
    });
    assert_eq!((by(&again.find()), counts(&again.find()).0), ("the loop at train.py:20", 10));
}

#[test]
fn an_evaluation_that_a_library_loops_over_counts_by_its_calls() {
    let tape = script(|tape| {
        tape.line(20);
        tape.package("evaluation_loop", "transformers/trainer.py", 4330, |tape| {
            for _ in 0..30 {
                tape.line(4331).alloc(4096).line(4340).predict(8 << 20).line(4350).free(4096);
            }
        });
    });
    assert_eq!((by(&tape.find()), counts(&tape.find()).0), ("the loop at train.py:20", 30));
}

#[test]
fn layers_without_stacks_are_no_period_while_they_keep_what_they_make() {
    let mut tape = script(|tape| layers(tape.line(20), 60, 8 << 20, 4 << 20));
    tape.events.iter_mut().for_each(|event| event.stack = memctl_model::StackId::NONE);
    nothing(&tape);
}

#[test]
fn a_recomputed_layer_is_no_step() {
    let recomputed = |tape: &mut Tape| {
        tape.package("unpack_hook", "torch/utils/checkpoint.py", 1100, |tape| {
            tape.package("recompute_fn", "torch/utils/checkpoint.py", 1500, |tape| {
                tape.package("_wrapped_call_impl", "torch/nn/modules/module.py", 1779, |tape| {
                    tape.alloc(1 << 20);
                });
            });
        });
    };
    let mut tape = Tape::default();
    for _ in 0..12 {
        recomputed(&mut tape);
        // A hook of the user's code runs in between.
        tape.call("on_gradient", TRAIN, 5, |tape| {
            tape.alloc(512).free(512);
        });
        tape.free(1 << 20);
    }
    nothing(&tape);
}

#[test]
fn three_steps_are_three() {
    for steps in [2, 3] {
        let tape = script(|tape| (0..steps).for_each(|_| step(tape)));
        assert_eq!(counts(&tape.find()).0, steps);
    }
    let one = script(step);
    assert_eq!(counts(&one.find()).0, 0);
}

//! Tests every rule on a block of its own, and that the classes sum to the input.

use memctl_model::{DeviceIndex, Frame, KeyframeReason, SegmentState};
use proptest::prelude::*;

use super::*;

fn stacks(id: StackId) -> Stack {
    let frame = |function: &str, file: &str| Frame { function: function.into(), file: file.into(), line: 1 };
    let torch = "/env/lib/python3.12/site-packages/torch";
    let frames = match id.0 {
        1 => vec![
            frame("<lambda>", "x"),
            frame("_apply", &format!("{torch}/nn/modules/module.py")),
            frame("main", "train.py"),
        ],
        2 => vec![frame("_init_group", &format!("{torch}/optim/adam.py")), frame("step", "train.py")],
        3 => vec![frame("_multi_tensor_adam", &format!("{torch}/optim/adam.py")), frame("step", "train.py")],
        4 => vec![frame("AccumulateGrad", "<autograd>"), frame("forward", "model.py")],
        5 => vec![frame("AddmmBackward0", "<autograd>"), frame("forward", "model.py")],
        6 => vec![frame("linear", &format!("{torch}/nn/functional.py")), frame("forward", "model.py")],
        7 => vec![frame("_pre_forward", &format!("{torch}/nn/parallel/distributed.py"))],
        8 => vec![frame("step", "train.py")],
        9 => vec![
            frame("Parameter.__deepcopy__", &format!("{torch}/nn/parameter.py")),
            frame("AveragedModel.__init__", &format!("{torch}/optim/swa_utils.py")),
        ],
        10 => vec![frame("AveragedModel.update_parameters", &format!("{torch}/optim/swa_utils.py"))],
        11 => vec![frame("Optimizer.load_state_dict", &format!("{torch}/optim/optimizer.py"))],
        // Lightning: the closure of an optimizer's step is the whole step.
        12..=15 => {
            let mut frames = match id.0 {
                12 => vec![frame("linear", &format!("{torch}/nn/functional.py")), frame("M.forward", "model.py")],
                13 => vec![frame("M.training_step", "model.py")],
                14 => vec![frame("AddmmBackward0", "<autograd>"), frame("M.forward", "model.py")],
                _ => vec![frame("_foreach_add", &format!("{torch}/utils/_foreach_utils.py"))],
            };
            if id.0 < 15 {
                frames.push(frame("Closure.closure", "lightning/loops/automatic.py"));
            }
            frames.push(frame("Adam.step", &format!("{torch}/optim/adam.py")));
            frames.push(frame("wrapper", &format!("{torch}/optim/optimizer.py")));
            frames
        }
        // A third party's optimizer, and a closure that an optimizer calls; the closure's name shows nothing.
        16 => vec![frame("Lion.step", "lion/opt.py"), frame("wrapper", &format!("{torch}/optim/optimizer.py"))],
        17 => vec![frame("f", "train.py"), frame("LBFGS.step", &format!("{torch}/optim/lbfgs.py"))],
        _ => Vec::new(),
    };
    Stack { frames }
}

fn block(addr: u64, size: u64, stack: u32, birth_step: u64, birth_phase: Option<Phase>) -> BlockState {
    BlockState {
        addr,
        size,
        requested: size,
        usage: BlockUse::Allocated,
        stack: StackId(stack),
        birth_step,
        birth_phase,
        birth_epoch: 0,
    }
}

fn state(loose: Vec<BlockState>) -> Keyframe {
    let segments: Vec<SegmentState> = Vec::new();
    Keyframe { device: DeviceIndex(0), at_event: 0, time_ns: 0, reason: KeyframeReason::Periodic, segments, loose }
}

#[test]
fn every_rule() {
    let rows = [
        (block(0x1000, 4096, 1, 0, None), Class::Parameters),
        (block(0x2000, 4096, 2, 0, None), Class::OptimizerState),
        (block(0x3000, 512, 3, 0, None), Class::OptimizerState),
        (block(0x4000, 512, 3, 9, None), Class::Temporaries),
        (block(0x5000, 512, 4, 9, None), Class::Gradients),
        (block(0x6000, 4096, 5, 9, None), Class::Gradients),
        (block(0x7000, 1024, 5, 9, None), Class::Temporaries),
        (block(0x8000, 1024, 5, 3, None), Class::Unknown),
        (block(0x9000, 1024, 6, 9, None), Class::Activations),
        (block(0xa000, 8_519_680, 6, 3, None), Class::Workspace),
        (block(0x0100_0000, 8_519_680, 6, 9, None), Class::Activations),
        (block(0x0200_0000, 1024, 7, 3, None), Class::Gradients),
        (block(0x0300_0000, 1024, 8, 9, None), Class::Temporaries),
        (block(0x0400_0000, 1024, 8, 3, None), Class::Unknown),
        (block(0x0500_0000, 1024, 0, 9, None), Class::Unknown),
        (block(0x0600_0000, 4096, 0, 9, Some(Phase::Backward)), Class::Gradients),
        (block(0x0700_0000, 1024, 0, 9, Some(Phase::Backward)), Class::Temporaries),
        (block(0x0800_0000, 1024, 8, 3, Some(Phase::Eval)), Class::Activations),
        (block(0x0900_0000, 2048, 9, 0, None), Class::Parameters),
        (block(0x0a00_0000, 1024, 10, 9, None), Class::Temporaries),
        (block(0x0b00_0000, 1024, 11, 9, None), Class::OptimizerState),
        (block(0x0c00_0000, 1024, 12, 9, Some(Phase::Forward)), Class::Activations),
        (block(0x0c10_0000, 1024, 12, 9, Some(Phase::Optimizer)), Class::Activations),
        (block(0x0c20_0000, 1024, 13, 9, Some(Phase::Optimizer)), Class::Temporaries),
        (block(0x0c30_0000, 1024, 13, 3, Some(Phase::Optimizer)), Class::Unknown),
        (block(0x0c40_0000, 1024, 13, 9, Some(Phase::Forward)), Class::Activations),
        (block(0x0c50_0000, 4096, 14, 9, Some(Phase::Optimizer)), Class::Gradients),
        (block(0x0c60_0000, 1024, 15, 9, Some(Phase::Optimizer)), Class::Temporaries),
        (block(0x0c70_0000, 1024, 15, 3, Some(Phase::Optimizer)), Class::OptimizerState),
        (block(0x0c80_0000, 1024, 16, 3, None), Class::OptimizerState),
        (block(0x0c90_0000, 1024, 17, 3, None), Class::Unknown),
    ];
    let keyframe = state(rows.iter().map(|(block, _)| *block).collect());
    let mut classifier = Classifier::new(&stacks);
    let found: Vec<Class> = classifier.blocks(&keyframe, Some(9), None).into_iter().map(|(class, _)| class).collect();
    let wanted: Vec<Class> = rows.iter().map(|&(_, class)| class).collect();
    assert_eq!(found, wanted);
    // Storages that a session lists need no rule. They also show the sizes of parameters.
    let exact = Exact::from([(0x0500_0000, Class::Parameters), (0x1000, Class::Gradients)]);
    let mut classifier = Classifier::new(&stacks);
    let found = classifier.of_state(&keyframe, Some(9), Some(&exact));
    assert_eq!(found.of(Class::Parameters), 1024 + 2048);
    assert_eq!(found.total(), keyframe.loose.iter().map(|block| block.size).sum::<u64>());
}

proptest! {
    #[test]
    fn classes_sum_to_what_was_given(
        blocks in prop::collection::vec((1_u64..1 << 40, 0_u32..10, 0_u64..12, 0_u32..6), 0..80),
        step in prop::option::of(0_u64..12),
    ) {
        let blocks: Vec<BlockState> = blocks
            .into_iter()
            .map(|(size, stack, birth, phase)| block(size, size, stack, birth, Phase::of_number(phase)))
            .collect();
        let total: u64 = blocks.iter().map(|block| block.size).sum();
        let rows: Vec<SiteRow> = blocks
            .iter()
            .map(|block| SiteRow {
                stack: block.stack,
                birth_epoch: 0,
                birth_phase: block.birth_phase,
                blocks: 1 + block.birth_step,
                bytes: block.size,
            })
            .collect();
        let mut classifier = Classifier::new(&stacks);
        prop_assert_eq!(classifier.of_rows(&rows, &HashMap::new()).total(), total);
        prop_assert_eq!(classifier.of_state(&state(blocks), step, None).total(), total);
    }
}

//! tmp
use super::*;
use memctl_proto::chunk::{ChunkMeta, Encoder};
#[test]
fn real() {
    let read = |n: &str| std::fs::read_to_string(format!("/tmp/cli-viz/{n}")).unwrap();
    let nums = |l: &str| l.split(' ').map(|x| x.parse::<u64>().unwrap_or(0)).collect::<Vec<_>>();
    let events: Vec<Event> = read("events.txt").lines().map(|l| { let v = nums(l); Event { time_ns: v[0], addr: v[1], size: v[2], stream: v[3], pool: PoolId::DEFAULT, stack: StackId(v[4] as u32), action: Action::from_number(v[5] as u8).unwrap() } }).collect();
    let mut segs: Vec<SegmentState> = vec![];
    for l in read("segs.txt").lines() { let v = nums(&l[2..]); if l.starts_with('S') { segs.push(SegmentState { addr: v[0], size: v[1], stream: v[2], kind: if l.contains("small") { SegmentKind::Small } else { SegmentKind::Large }, expandable: v[4] == 1, ..Default::default() }) } else { segs.last_mut().unwrap().blocks.push(BlockState { addr: v[0], size: v[1], requested: v[2], usage: [BlockUse::Inactive, BlockUse::Allocated, BlockUse::PendingFree][v[3] as usize], stack: StackId(v[4] as u32), ..Default::default() }) } }
    let dev: u32 = read("dev").parse().unwrap();
    let settings = AllocatorSettings::default();
    let init = memctl_analysis::initial_state(&settings, DeviceIndex(dev as u8), &segs, events.iter().copied());
    let mut sender = memctl_proto::convert::StackSender::default();
    for l in read("stacks.txt").lines() { let fr: Vec<Frame> = l.split('\x01').map(|f| { let p: Vec<&str> = f.split('\x02').collect(); Frame { function: p[0].into(), file: p[1].into(), line: p[2].parse().unwrap() } }).collect(); sender.add(&fr); }
    let out = std::io::BufWriter::new(std::fs::File::create("/tmp/cli-viz/out.pickle").unwrap());
    let mut sink = MemoryViz::new(out, Windows::new(&v1::Selection::default())).unwrap();
    sink.part(Body::Start(v1::RankStart { rank: 0, device: dev, session: Some(v1::SessionInfo { id: vec![1; 16], settings: Some((&settings).into()), ..Default::default() }) })).unwrap();
    sink.part(Body::Stacks(sender.take().unwrap())).unwrap();
    sink.part(Body::Keyframe((&init.keyframe).into())).unwrap();
    let mut enc = Encoder::new(1000).unwrap();
    for c in events.chunks(5000) { for e in c { enc.push(e).unwrap(); } sink.part(Body::Chunk(enc.finish(&ChunkMeta { device: DeviceIndex(dev as u8), ..Default::default() }).unwrap().into())).unwrap(); }
    sink.finish().unwrap();
}

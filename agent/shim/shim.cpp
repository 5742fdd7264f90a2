// The shim between PyTorch's CUDA caching allocator and memctl's hook. It is the only C++ of memctl and is built
// against the user's torch.
//
// Guarantees: it attaches one trace tracker and one out-of-memory observer for the life of the process. They only pass
// plain numbers to two C functions. No exception leaves any function of this file. Nothing here depends on Python.
// Refuses: allocators that cannot be traced (cudaMallocAsync, pluggable ones). Attaching then returns the reason.
//
// The structures below have the same layouts as those of agent/src/hook/mod.rs and agent/src/live/shim.rs. Both sides
// assert the same numbers, and a test compares them. A change must increase MEMCTL_SHIM_ABI.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <typeinfo>

#define MEMCTL_SHIM_ABI 4
// Version and commit of the torch that this is built for. The compiler's command line passes it, because the headers do
// not contain the commit.
#ifndef MEMCTL_TORCH_BUILD
#define MEMCTL_TORCH_BUILD TORCH_VERSION
#endif
#define MEMCTL_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#define MEMCTL_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), "size of " #type)
#define MEMCTL_AT(type, field, at) static_assert(offsetof(type, field) == (at), "offset of " #type "." #field)
#define MEMCTL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

struct Event {
  uint64_t addr;
  uint64_t size;
  uint64_t stream;
  uint64_t ticks;
  uint32_t pool[2];
  int32_t action;
  int32_t device;
  // The name of the memory's owner that the program set: address and length, valid during the call. Both are 0 if it
  // set none.
  uint64_t owner;
  uint64_t owner_bytes;
};

struct OutOfMemory {
  int64_t device;
  uint64_t asked;
  uint64_t device_total;
  uint64_t device_free;
};

struct Node {
  uint64_t kind;
  uint64_t made_by;
};

struct Counters {
  int64_t allocated, active, reserved;
  int64_t peak_allocated, peak_reserved;
  int64_t retries, ooms;
};

// One segment, followed by its blocks in the order of their addresses.
struct Segment {
  uint64_t addr, size, stream;
  uint32_t pool[2];
  int32_t device;
  uint8_t is_large, is_expandable, pad[2];
};

struct Block {
  uint64_t addr, size, requested;
  uint8_t allocated, active, pad[6];
};

// The Rust side asserts the same layouts.
MEMCTL_SIZE(Event, 64);
MEMCTL_AT(Event, addr, 0);
MEMCTL_AT(Event, size, 8);
MEMCTL_AT(Event, stream, 16);
MEMCTL_AT(Event, ticks, 24);
MEMCTL_AT(Event, pool, 32);
MEMCTL_AT(Event, action, 40);
MEMCTL_AT(Event, device, 44);
MEMCTL_AT(Event, owner, 48);
MEMCTL_AT(Event, owner_bytes, 56);
MEMCTL_SIZE(OutOfMemory, 32);
MEMCTL_AT(OutOfMemory, device, 0);
MEMCTL_AT(OutOfMemory, asked, 8);
MEMCTL_AT(OutOfMemory, device_total, 16);
MEMCTL_AT(OutOfMemory, device_free, 24);
MEMCTL_SIZE(Node, 16);
MEMCTL_AT(Node, kind, 0);
MEMCTL_AT(Node, made_by, 8);
MEMCTL_SIZE(Counters, 56);
MEMCTL_AT(Counters, allocated, 0);
MEMCTL_AT(Counters, active, 8);
MEMCTL_AT(Counters, reserved, 16);
MEMCTL_AT(Counters, peak_allocated, 24);
MEMCTL_AT(Counters, peak_reserved, 32);
MEMCTL_AT(Counters, retries, 40);
MEMCTL_AT(Counters, ooms, 48);
MEMCTL_SIZE(Segment, 40);
MEMCTL_AT(Segment, addr, 0);
MEMCTL_AT(Segment, size, 8);
MEMCTL_AT(Segment, stream, 16);
MEMCTL_AT(Segment, pool, 24);
MEMCTL_AT(Segment, device, 32);
MEMCTL_AT(Segment, is_large, 36);
MEMCTL_AT(Segment, is_expandable, 37);
MEMCTL_SIZE(Block, 32);
MEMCTL_AT(Block, addr, 0);
MEMCTL_AT(Block, size, 8);
MEMCTL_AT(Block, requested, 16);
MEMCTL_AT(Block, allocated, 24);
MEMCTL_AT(Block, active, 25);

using OnEvent = void (*)(const Event*);
using OnOutOfMemory = void (*)(const OutOfMemory*);
using OnSegment = void (*)(void*, const Segment*, const Block*, uint64_t);

void say(char* why, size_t room, const char* text) {
  if (why != nullptr && room > 0) std::snprintf(why, room, "%s", text);
}

// The id of a forward call: PyTorch's sequence number of the autograd node, with the thread that made it. Each thread
// counts its own sequence.
uint64_t call(uint64_t sequence, uint64_t thread) {
  return sequence == UINT64_MAX ? UINT64_MAX : (sequence & 0xffffffffffULL) | thread << 40;
}

// The stamp of an event, on the clock that the hook's reader expects (agent/src/clock.rs). On aarch64 that is the
// virtual counter. There, torch stamps with the wall clock up to 2.11 and with the counter in later versions.
uint64_t stamp(const caching::TraceEntry& entry) {
#if defined(C10_RDTSC) || defined(C10_ARMTSC)
  return static_cast<uint64_t>(entry.time_.approx_t_);
#elif defined(__aarch64__)
  (void)entry;
  uint64_t ticks;
  __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  (void)entry;
  return static_cast<uint64_t>(c10::getTime());
#endif
}

// The name that `torch.cuda.memory._set_memory_metadata` gave to what this thread allocates, in versions that have it
// (2.10).
template <class Entry>
auto owner_of(const Entry& entry, int) -> decltype(static_cast<const std::string*>(&entry.user_metadata_)) {
  return &entry.user_metadata_;
}
template <class Entry>
const std::string* owner_of(const Entry&, long) {
  return nullptr;
}

void pass_event(OnEvent on_event, const caching::TraceEntry& entry) {
  Event event{};
  event.addr = static_cast<uint64_t>(entry.addr_);
  event.size = static_cast<uint64_t>(entry.size_);
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  event.ticks = stamp(entry);
#if MEMCTL_TORCH >= 208
  event.pool[0] = static_cast<uint32_t>(entry.mempool_.first);
  event.pool[1] = static_cast<uint32_t>(entry.mempool_.second);
#endif
  event.action = static_cast<int32_t>(entry.action_);
  event.device = static_cast<int32_t>(entry.device_);
  const std::string* owner = owner_of(entry, 0);
  if (owner != nullptr && !owner->empty()) {
    event.owner = reinterpret_cast<uint64_t>(owner->data());
    event.owner_bytes = owner->size();
  }
  on_event(&event);
}

void pass_segment(void* context, OnSegment on_segment, const caching::SegmentInfo& from) {
  Segment segment{};
  segment.addr = static_cast<uint64_t>(from.address);
  segment.size = static_cast<uint64_t>(from.total_size);
  segment.stream = reinterpret_cast<uint64_t>(from.stream);
  segment.pool[0] = static_cast<uint32_t>(from.owner_private_pool_id.first);
  segment.pool[1] = static_cast<uint32_t>(from.owner_private_pool_id.second);
  segment.device = static_cast<int32_t>(from.device);
  segment.is_large = from.is_large;
  segment.is_expandable = from.is_expandable;
  std::vector<Block> blocks;
  blocks.reserve(from.blocks.size());
  uint64_t addr = segment.addr;
  for (const auto& block : from.blocks) {
    Block to{};
    to.addr = addr;
    to.size = static_cast<uint64_t>(block.size);
    to.requested = static_cast<uint64_t>(block.requested_size);
    to.allocated = block.allocated;
    to.active = block.active;
    blocks.push_back(to);
    addr += to.size;
  }
  on_segment(context, &segment, blocks.data(), blocks.size());
}

} // namespace

// The version of this file's structures and functions.
MEMCTL_EXPORT uint32_t memctl_shim_abi() { return MEMCTL_SHIM_ABI; }

// The torch that this was built for, "2.11.0+cu130 COMMIT". With the text before it, it can be found in the file
// without loading it.
MEMCTL_EXPORT const char* memctl_shim_torch() {
  static const char mark[] = "memctl-hook-for: " MEMCTL_TORCH_BUILD;
  return mark + sizeof("memctl-hook-for: ") - 1;
}

// Attaches the tracker and the observer, which stay for ever. Returns 0, or 1 with a sentence in `why`. CUDA must be
// initialised.
MEMCTL_EXPORT int memctl_shim_attach(OnEvent on_event, OnOutOfMemory on_oom, char* why, size_t room) try {
  auto* allocator = caching::get();
  if (allocator == nullptr || !allocator->initialized()) {
    say(why, room, "CUDA is not initialised yet");
    return 1;
  }
  allocator->attachAllocatorTraceTracker([on_event](const caching::TraceEntry& entry) { pass_event(on_event, entry); });
  allocator->attachOutOfMemoryObserver([on_oom](int64_t device, size_t asked, size_t total, size_t free) {
    OutOfMemory oom{device, asked, total, free};
    on_oom(&oom);
  });
  return 0;
} catch (const std::exception& error) {
  say(why, room, error.what());
  return 1;
} catch (...) {
  say(why, room, "an unknown exception");
  return 1;
}

// Reads the allocator's own counters of a device. Returns 0, or 1 when there are none. Waits only for the device's
// lock.
MEMCTL_EXPORT int memctl_shim_counters(int device, Counters* counters) try {
  const auto stats = caching::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  counters->allocated = stats.allocated_bytes[0].current;
  counters->active = stats.active_bytes[0].current;
  counters->reserved = stats.reserved_bytes[0].current;
  counters->peak_allocated = stats.allocated_bytes[0].peak;
  counters->peak_reserved = stats.reserved_bytes[0].peak;
  counters->retries = stats.num_alloc_retries;
  counters->ooms = stats.num_ooms;
  return 0;
} catch (...) {
  return 1;
}

// Passes every segment of every device with its blocks, and makes one `snapshot` event for each device at exactly that
// point. Returns 0, or 1 on failure. The user's recorded history is left out where torch allows that (2.11 and later).
MEMCTL_EXPORT int memctl_shim_segments(void* context, OnSegment on_segment) try {
#if MEMCTL_TORCH >= 211
  const auto snapshot = caching::snapshot({0, 0}, false);
#else
  const auto snapshot = caching::snapshot();
#endif
  for (const auto& segment : snapshot.segments) pass_segment(context, on_segment, segment);
  return 0;
} catch (...) {
  return 1;
}

// Sequence number and thread of the autograd node that is made next on this thread. Two thread-local reads.
MEMCTL_EXPORT uint64_t memctl_shim_sequence() {
  return call(at::sequence_number::peek(), at::RecordFunction::currentThreadId());
}

// Reads the autograd node that runs on this thread. Returns 1, or 0 when there is none.
MEMCTL_EXPORT int memctl_shim_node(Node* to) try {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return 0;
  // The type is identified by the address of its virtual table, which is the object's first word (Itanium C++ ABI). The
  // object is in the cache. The type's description would cost two more cold cache lines.
  std::memcpy(&to->kind, static_cast<const void*>(node.get()), sizeof to->kind);
  to->made_by = call(node->sequence_nr(), node->thread_id());
  return 1;
} catch (...) {
  return 0;
}

// The mangled name of that node's type, in static memory; null when there is none.
MEMCTL_EXPORT const char* memctl_shim_node_type() try {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return nullptr;
  // This is the type's name. Node::name() is not used: it allocates, and for nodes written in Python it takes the
  // interpreter's lock.
  const auto& known = *node;
  return typeid(known).name();
} catch (...) {
  return nullptr;
}

// The device that is current on this thread, or -1.
MEMCTL_EXPORT int memctl_shim_device() try {
  return static_cast<int>(c10::cuda::current_device());
} catch (...) {
  return -1;
}

// Whether a CUDA graph is being captured on this thread's stream. During a capture the device must not be queried.
MEMCTL_EXPORT int memctl_shim_capturing() try {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
} catch (...) {
  return 1;
}
